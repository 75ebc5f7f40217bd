package plugin

import (
	"fmt"
	"reflect"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"rowmill.io/scheduler/placement"
)

// state mirrors nodes and pods of the cluster, with the reservations of pods that are not bound yet. Events and
// scheduling cycles arrive in any order: a pod may be seen before its node, or be reserved before it is seen.
type state struct {
	args    Args
	metrics *ruleMetrics
	logger  klog.Logger

	mu      sync.RWMutex
	cluster *placement.Cluster
	nodes   map[string]placement.Node
	// below caches the names of the nodes below a spine. The sets are replaced, never changed: the framework reads them
	// without the lock.
	below    map[spineKey]sets.Set[string]
	pods     map[types.UID]*podState
	onNode   map[string]map[types.UID]*podState
	services map[string]*serviceState
}

type spineKey struct{ zone, name string }

// podState is a pod that has not ended.
type podState struct {
	instance placement.Instance
	// node is where the pod is bound or reserved; empty while it waits.
	node string
	// reserved is true from Reserve until an informer shows the pod bound.
	reserved bool
	// seen is false for a pod that was reserved before an informer showed it.
	seen bool
	// counted is true if the cluster contains the pod: its node may be unknown.
	counted bool
}

// serviceState adds up what all pods of a service request, waiting ones included, by group.
type serviceState struct {
	pods   int
	groups map[int]placement.Demand
}

func newState(args Args, m *ruleMetrics, logger klog.Logger) (*state, error) {
	cluster, err := placement.NewCluster(placement.Options{Growth: args.Growth, UplinkNICs: args.UplinkNICs})
	if err != nil {
		return nil, err
	}
	return &state{
		args: args, metrics: m, logger: logger, cluster: cluster,
		nodes: map[string]placement.Node{}, below: map[spineKey]sets.Set[string]{},
		pods: map[types.UID]*podState{}, onNode: map[string]map[types.UID]*podState{}, services: map[string]*serviceState{},
	}, nil
}

// setNode adds or replaces a node. Its pods are counted again: their leaf may have changed.
func (s *state) setNode(object *v1.Node) {
	node := nodeOf(object, &s.args)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.nodes[node.Name]; ok {
		if reflect.DeepEqual(known, node) {
			return
		}
		s.dropNode(node.Name)
	}
	if err := s.cluster.AddNode(node); err != nil {
		s.logger.Error(err, "A node is left out", "node", node.Name)
		return
	}
	if node.Spine == "" || node.Leaf == "" {
		if s.metrics.unlabelled.add(node.Name) {
			s.logger.Info("A node lacks a label; nodes without labels count as one spine and leaf", "node", node.Name, "spineLabel", s.args.SpineLabel, "leafLabel", s.args.LeafLabel)
		}
	}
	s.nodes[node.Name] = node
	clear(s.below)
	for _, pod := range s.onNode[node.Name] {
		s.count(pod)
	}
}

func (s *state) removeNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.nodes[name]; known {
		s.dropNode(name)
	}
}

// dropNode removes a known node. Its pods stay known until they are deleted.
func (s *state) dropNode(name string) {
	if _, err := s.cluster.RemoveNode(name); err != nil {
		s.logger.Error(err, "A node cannot be removed", "node", name)
	}
	for _, pod := range s.onNode[name] {
		pod.counted = false
	}
	s.metrics.unlabelled.remove(name)
	delete(s.nodes, name)
	clear(s.below)
}

// setPod adds a pod or replaces what is known about it.
func (s *state) setPod(object *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object.Status.Phase == v1.PodSucceeded || object.Status.Phase == v1.PodFailed {
		s.dropPod(object.UID)
		return
	}
	in, err := instanceOf(object)
	if err != nil && object.Spec.NodeName != "" {
		s.logger.Error(err, "A running pod is counted without its service", "pod", klog.KObj(object))
	}
	pod := s.keep(in)
	pod.seen = true
	if object.Spec.NodeName != "" {
		pod.reserved = false
		s.move(object.UID, pod, object.Spec.NodeName)
	}
}

func (s *state) removePod(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropPod(uid)
}

func (s *state) dropPod(uid types.UID) {
	pod := s.pods[uid]
	if pod == nil {
		return
	}
	s.move(uid, pod, "")
	s.expect(&pod.instance, -1)
	delete(s.pods, uid)
}

// reserve counts a pod on a node before it is bound there.
func (s *state) reserve(object *v1.Pod, node string) error {
	in, err := instanceOf(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.nodes[node]; !known {
		return fmt.Errorf("node %q is not known any more", node)
	}
	pod := s.keep(in)
	pod.reserved = true
	s.move(object.UID, pod, node)
	return nil
}

// unreserve reverts reserve, unless the pod is bound, or was deleted in the meantime.
func (s *state) unreserve(uid types.UID, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.pods[uid]
	if pod == nil || !pod.reserved || pod.node != node {
		return
	}
	pod.reserved = false
	s.move(uid, pod, "")
	if !pod.seen {
		s.dropPod(uid)
	}
}

// keep returns the state of a pod, new or with a changed request.
func (s *state) keep(in placement.Instance) *podState {
	uid := types.UID(in.Name)
	pod := s.pods[uid]
	if pod == nil {
		pod = &podState{instance: in}
		s.pods[uid] = pod
		s.expect(&in, 1)
	} else if pod.instance != in {
		node := pod.node
		s.move(uid, pod, "")
		s.expect(&pod.instance, -1)
		pod.instance = in
		s.expect(&in, 1)
		s.move(uid, pod, node)
	}
	return pod
}

// move sets the node of a pod; empty for none.
func (s *state) move(uid types.UID, pod *podState, node string) {
	if pod.node == node {
		return
	}
	if pod.counted {
		if err := s.cluster.Release(pod.instance.Name); err != nil {
			s.logger.Error(err, "A pod cannot be released", "uid", uid)
		}
		pod.counted = false
	}
	if pod.node != "" {
		delete(s.onNode[pod.node], uid)
		if len(s.onNode[pod.node]) == 0 {
			delete(s.onNode, pod.node)
		}
	}
	pod.node = node
	if node == "" {
		return
	}
	if s.onNode[node] == nil {
		s.onNode[node] = map[types.UID]*podState{}
	}
	s.onNode[node][uid] = pod
	s.count(pod)
}

// count adds a pod to the cluster if its node is known.
func (s *state) count(pod *podState) {
	if _, known := s.nodes[pod.node]; !known {
		return
	}
	if err := s.cluster.Adopt(pod.instance, pod.node); err != nil {
		s.logger.Error(err, "A pod is not counted", "uid", pod.instance.Name, "node", pod.node)
		return
	}
	pod.counted = true
	if q, err := s.cluster.Ask(pod.instance); err == nil && q.Spines() > 1 && s.args.SpineRule == SpineHard {
		s.logger.Info("A service runs below several spines; new pods join the spine with most of them", "service", pod.instance.Service, "group", pod.instance.Group, "spines", q.Spines())
	}
}

// expect adds a pod to (1) or subtracts it from (-1) the expected demand of its service.
func (s *state) expect(in *placement.Instance, sign int) {
	name := in.Service
	service := s.services[name]
	if service == nil {
		service = &serviceState{groups: map[int]placement.Demand{}}
		s.services[name] = service
	}
	service.pods += sign
	service.groups[in.Group] = service.groups[in.Group].Plus(placement.DemandOf([]placement.Instance{*in}), sign)
	if service.pods == 0 {
		delete(s.services, name)
		s.cluster.Withdraw(name)
		return
	}
	declared := placement.Service{Name: name, Spines: s.args.strength()}
	for group, demand := range service.groups {
		declared.Groups = max(declared.Groups, group+1)
		declared.Expected = declared.Expected.Max(demand)
	}
	if err := s.cluster.Declare(declared); err != nil {
		s.logger.Error(err, "A service is placed without its expected demand", "service", name)
	}
}

// nodesBelow returns the names of the nodes below a spine.
func (s *state) nodesBelow(zone, name string) sets.Set[string] {
	key := spineKey{zone, name}
	if s.below[key] == nil {
		names := sets.New[string]()
		for _, node := range s.nodes {
			if node.Zone == zone && node.Spine == name {
				names.Insert(node.Name)
			}
		}
		s.below[key] = names
	}
	return s.below[key]
}
