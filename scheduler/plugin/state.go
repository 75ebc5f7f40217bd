package plugin

import (
	"cmp"
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
	// replicas returns how many pods an owner wants.
	replicas func(owner) int

	mu      sync.RWMutex
	cluster *placement.Cluster
	nodes   map[string]placement.Node
	// below caches the names of the nodes below a spine. The sets are replaced, never changed: the framework reads them
	// without the lock.
	below    map[spineKey]sets.Set[string]
	pods     map[types.UID]*podState
	onNode   map[string]map[types.UID]*podState
	services map[string]*serviceState
	// freed counts changes that may let a pod fit that was rejected before.
	freed int
}

type spineKey struct{ zone, name string }

func (k spineKey) compare(other spineKey) int {
	return cmp.Or(cmp.Compare(k.zone, other.zone), cmp.Compare(k.name, other.name))
}

// podState is a pod that has not ended.
type podState struct {
	instance placement.Instance
	owner    owner
	// node is where the pod is bound or reserved; empty while it waits.
	node string
	// reserved is true from Reserve until an informer shows the pod bound.
	reserved bool
	// seen is false for a pod that was reserved before an informer showed it.
	seen bool
	// counted is true if the cluster contains the pod: its node may be unknown.
	counted bool
}

// serviceState is what the pods of a service request, waiting ones included, by group and owner.
type serviceState struct {
	pods   int
	groups map[int]map[owner]*ownedPods
}

type ownedPods struct {
	pods int
	sum  placement.Demand
	// one is what a pod requested last; the owner makes the next ones equal.
	one placement.Demand
}

func newState(args Args, m *ruleMetrics, logger klog.Logger) (*state, error) {
	cluster, err := placement.NewCluster(placement.Options{Growth: args.Growth, UplinkNICs: args.UplinkNICs})
	if err != nil {
		return nil, err
	}
	return &state{
		args: args, metrics: m, logger: logger, replicas: func(owner) int { return 0 }, cluster: cluster,
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
	s.freed++
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
	s.freed++
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
	pod := s.keep(in, ownerOf(object))
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
	s.expect(pod, -1)
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
	pod := s.keep(in, ownerOf(object))
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
func (s *state) keep(in placement.Instance, by owner) *podState {
	uid := types.UID(in.Name)
	pod := s.pods[uid]
	if pod == nil {
		pod = &podState{instance: in, owner: by}
		s.pods[uid] = pod
		s.expect(pod, 1)
	} else if pod.instance != in {
		node := pod.node
		s.move(uid, pod, "")
		s.expect(pod, -1)
		pod.instance = in
		s.expect(pod, 1)
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
		s.freed++
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

// ask begins a cycle for a pod. It returns the nodes below the spine that the pod must use, or nil if it may use several.
func (s *state) ask(in placement.Instance, by owner) (*cycle, sets.Set[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(in, by)
	question, err := s.cluster.Ask(in)
	if err != nil {
		return nil, nil, err
	}
	if question.Spines() == 0 {
		// The number of replicas may have changed since the last pod of the service was seen.
		s.declare(in.Service)
	}
	c := &cycle{question: question, freed: s.freed}
	if zone, spine, ok := question.Spine(); ok {
		return c, s.nodesBelow(zone, spine), nil
	}
	return c, nil, nil
}

// expect adds a pod to (1) or subtracts it from (-1) what its service requests.
func (s *state) expect(pod *podState, sign int) {
	in := &pod.instance
	service := s.services[in.Service]
	if service == nil {
		service = &serviceState{groups: map[int]map[owner]*ownedPods{}}
		s.services[in.Service] = service
	}
	if service.groups[in.Group] == nil {
		service.groups[in.Group] = map[owner]*ownedPods{}
	}
	owned := service.groups[in.Group][pod.owner]
	if owned == nil {
		owned = &ownedPods{}
		service.groups[in.Group][pod.owner] = owned
	}
	service.pods += sign
	owned.pods += sign
	owned.one = placement.DemandOf([]placement.Instance{*in})
	owned.sum = owned.sum.Plus(owned.one, sign)
	if owned.pods == 0 {
		delete(service.groups[in.Group], pod.owner)
	}
	if service.pods == 0 {
		delete(s.services, in.Service)
		s.cluster.Withdraw(in.Service)
		return
	}
	s.declare(in.Service)
}

// declare tells the cluster the expected demand of a service: what its pods request, and what their owners will add.
func (s *state) declare(name string) {
	declared := placement.Service{Name: name, Spines: s.args.strength()}
	for group, owners := range s.services[name].groups {
		var sum placement.Demand
		for by, owned := range owners {
			missing := max(s.replicas(by)-owned.pods, 0)
			sum = sum.Plus(owned.sum, 1).Plus(owned.one.Times(float64(missing)), 1)
		}
		declared.Groups = max(declared.Groups, group+1)
		declared.Expected = declared.Expected.Max(sum)
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
