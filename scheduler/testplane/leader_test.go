package testplane

import (
	"context"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Two schedulers with an election. The leader is killed midway: the other one takes over, no pod is lost or bound twice,
// and all rules hold, although what the first one had reserved is unknown to the second.

// electionTimes make a scheduler take over within seconds of the death of the leader.
const electionTimes = "leaderElect: true\n  leaseDuration: 10s\n  renewDeadline: 8s\n  retryPeriod: 1s"

// bindings watches pods and records every node that each pod gets.
type bindings struct {
	mu    sync.Mutex
	nodes map[string][]string
}

func (b *bindings) watch(ctx context.Context, t *testing.T, p *Plane) {
	t.Helper()
	pods := p.Client.CoreV1().Pods(Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	must(t, err)
	go func() {
		// The server ends a watch that reads too slowly, so go on after the last event.
		for version := list.ResourceVersion; ctx.Err() == nil; {
			events, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("watch the pods: %v", err)
				}
				return
			}
			for event := range events.ResultChan() {
				pod, ok := event.Object.(*v1.Pod)
				if ctx.Err() != nil {
					return
				}
				if !ok {
					t.Errorf("watch the pods: %v", event.Object)
					return
				}
				version = pod.ResourceVersion
				if event.Type != watch.Deleted && pod.Spec.NodeName != "" {
					b.add(pod.Name, pod.Spec.NodeName)
				}
			}
		}
	}()
}

func (b *bindings) add(pod, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if nodes := b.nodes[pod]; len(nodes) == 0 || nodes[len(nodes)-1] != node {
		b.nodes[pod] = append(nodes, node)
	}
}

func (b *bindings) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.nodes)
}

func TestLeaderIsKilledMidway(t *testing.T) {
	p := startPlane(t, nil, nil)
	ctx := t.Context()
	const services, each = 8, 100
	pods := workers(services, each)
	must(t, CreateNodes(ctx, p.Client, fabric(3, 8)))
	must(t, CreatePods(ctx, p.Client, pods))
	seen := &bindings{nodes: map[string][]string{}}
	seen.watch(ctx, t, p)
	configuration := exampleConfiguration(t, "leaderElect: true", electionTimes)
	leader := startScheduler(t, p, "leader", configuration)
	must(t, Wait(ctx, "the first pods are bound", bindLimit, func() (bool, error) { return seen.count() > 0, nil }))
	// The second one starts when the first one leads, and waits.
	follower := startScheduler(t, p, "follower", configuration)
	must(t, Wait(ctx, "a quarter of the pods is bound", bindLimit, func() (bool, error) { return seen.count() >= len(pods)/4, nil }))
	must(t, leader.Kill())
	early := seen.count()
	bound, err := WaitBound(ctx, p.Client, len(pods), bindLimit)
	must(t, err)
	if !follower.Running() {
		t.Error("the second scheduler has ended")
	}
	checkRules(t, p, bound)
	names := map[string]bool{}
	for i := range bound {
		names[bound[i].Name] = true
	}
	for _, pod := range pods {
		if !names[pod.Name] {
			t.Errorf("pod %s is lost", pod.Name)
		}
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for pod, nodes := range seen.nodes {
		if len(nodes) != 1 {
			t.Errorf("pod %s was bound to %v", pod, nodes)
		}
	}
	taken, err := follower.Attempts()
	must(t, err)
	t.Logf("%d of %d pods were bound when the leader was killed; the other scheduler tried %d", early, len(pods), len(taken))
	if early == len(pods) || len(taken) == 0 {
		t.Errorf("the leader was not killed midway: %d of %d pods were bound", early, len(pods))
	}
}
