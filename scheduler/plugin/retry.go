package plugin

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"rowmill.io/scheduler/placement"
)

// The scheduler and this plugin each get events of nodes and pods by a queue of their own. An event may wake a waiting
// pod, and the pod may be rejected again, before the same event has reached the plugin. No other event would follow, so
// the plugin tries such a pod again by itself: if its state is behind the scheduler's, or changed during the attempt.
const (
	retryDelay = 50 * time.Millisecond
	retriesMax = 20
)

// retries counts, by pod, the attempts in a row that were made for this reason.
type retries struct {
	activate func(klog.Logger, map[string]*v1.Pod)
	logger   klog.Logger

	mu     sync.Mutex
	counts map[types.UID]int
}

// again makes the scheduler try a pod again after a moment.
func (r *retries) again(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts[pod.UID] >= retriesMax {
		r.logger.Info("The plugin's nodes or pods have differed from those of the scheduler for long; the pod waits for an event", "pod", klog.KObj(pod), "attempts", retriesMax)
		delete(r.counts, pod.UID)
		return
	}
	r.counts[pod.UID]++
	time.AfterFunc(retryDelay, func() { r.activate(r.logger, map[string]*v1.Pod{string(pod.UID): pod}) })
}

func (r *retries) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.counts, uid)
}

// behind reports whether the state misses a change that the scheduler knows and that may let a pod fit.
func (s *state) behind(question *placement.Question, known []fwk.NodeInfo) bool {
	if len(known) != len(s.nodes) {
		return true
	}
	zone, spine, hard := question.Spine()
	below := func(z, name string) bool { return !hard || z == zone && name == spine }
	for _, info := range known {
		object := info.Node()
		ours, ok := s.nodes[object.Name]
		if !ok {
			return true
		}
		if z, name := object.Labels[s.args.ZoneLabel], object.Labels[s.args.SpineLabel]; z != ours.Zone || name != ours.Spine {
			if below(z, name) || below(ours.Zone, ours.Spine) {
				return true
			}
		} else if below(z, name) && (object.Labels[s.args.LeafLabel] != ours.Leaf || len(info.GetPods()) < len(s.onNode[object.Name])) {
			return true
		}
	}
	return false
}
