package main

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/kube"
)

// size is the size of a run.
type size struct{ nodes, bound, pods int }

// Each spine has 20 leaves of 25 nodes, and a service has 100 pods.
const (
	nodesPerLeaf, leavesPerSpine = 25, 20
	podsPerService               = 100
	podCores, podMemory, podNIC  = 2, 4, 10
)

// cluster is the state before a run.
type cluster struct {
	nodes []*v1.Node
	pods  []*v1.Pod
}

// newCluster makes nodes and pods. The bound ones are where package placement puts them, in every variant alike. With
// affinity, pods ask for the spine of their service, and prefer its leaves, by affinity terms.
func newCluster(size size, affinity bool) (*cluster, error) {
	c := &cluster{}
	placed, err := placement.NewCluster(placement.Options{})
	if err != nil {
		return nil, err
	}
	for n := range size.nodes {
		leaf := n / nodesPerLeaf
		node := newNode(fmt.Sprintf("node-%05d", n), fmt.Sprintf("s%02d", leaf/leavesPerSpine), fmt.Sprintf("l%03d", leaf))
		c.nodes = append(c.nodes, node)
		err := placed.AddNode(placement.Node{
			Name: node.Name, Spine: node.Labels[kube.DefaultLabels.Spine], Leaf: node.Labels[kube.DefaultLabels.Leaf],
			Resources: placement.Resources{Cores: 64_000, Memory: 256 << 10}, NICs: make([]placement.NIC, 2),
		})
		if err != nil {
			return nil, err
		}
	}
	services := max((size.bound+size.pods)/podsPerService, 1)
	one := placement.Instance{Resources: placement.Resources{Cores: 1000 * podCores, Memory: podMemory << 10}, NIC: podNIC}
	for s := range services {
		expected := placement.DemandOf([]placement.Instance{one}).Times(podsPerService)
		if err := placed.Declare(placement.Service{Name: fmt.Sprintf("service-%03d", s), Expected: expected}); err != nil {
			return nil, err
		}
	}
	for i := range size.bound + size.pods {
		// The pods to place are of all services in turn.
		service := fmt.Sprintf("service-%03d", i%services)
		pod := newPod(fmt.Sprintf("pod-%05d", i), service, affinity)
		if i < size.bound {
			in := one
			in.Name, in.Service = pod.Name, service
			a, err := placed.Place(in)
			if err != nil {
				return nil, err
			}
			pod.Spec.NodeName = a.Node
		}
		c.pods = append(c.pods, pod)
	}
	return c, nil
}

func newNode(name, spine, leaf string) *v1.Node {
	capacity := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("64"), v1.ResourceMemory: resource.MustParse("256Gi"),
		v1.ResourcePods: resource.MustParse("110"), kube.NICResource: resource.MustParse("200"),
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			kube.DefaultLabels.Spine: spine, kube.DefaultLabels.Leaf: leaf, v1.LabelHostname: name,
		}},
		Status: v1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
}

func newPod(name, service string, affinity bool) *v1.Pod {
	request := v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse(fmt.Sprint(podCores)),
		v1.ResourceMemory: resource.MustParse(fmt.Sprint(podMemory, "Gi")),
		kube.NICResource:  resource.MustParse(fmt.Sprint(podNIC)),
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceDefault, UID: types.UID(name),
			Labels: map[string]string{kube.ServiceLabel: service},
		},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers:    []v1.Container{{Name: "worker", Image: "none", Resources: v1.ResourceRequirements{Requests: request, Limits: request}}},
		},
	}
	if affinity {
		term := func(key string) v1.PodAffinityTerm {
			return v1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}, TopologyKey: key}
		}
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  []v1.PodAffinityTerm{term(kube.DefaultLabels.Spine)},
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: term(kube.DefaultLabels.Leaf)}},
		}}
	}
	return pod
}

// spread returns the mean numbers of leaves and spines below which a service runs after the run.
func (c *cluster) spread(bindings map[string]string) (leaves, spines float64) {
	labels := map[string]map[string]string{}
	for _, node := range c.nodes {
		labels[node.Name] = node.Labels
	}
	leavesOf, spinesOf, services := map[[2]string]bool{}, map[[2]string]bool{}, map[string]bool{}
	for _, pod := range c.pods {
		name := pod.Spec.NodeName
		if name == "" {
			name = bindings[pod.Name]
		}
		service := pod.Labels[kube.ServiceLabel]
		services[service] = true
		leavesOf[[2]string{service, labels[name][kube.DefaultLabels.Leaf]}] = true
		spinesOf[[2]string{service, labels[name][kube.DefaultLabels.Spine]}] = true
	}
	return float64(len(leavesOf)) / float64(len(services)), float64(len(spinesOf)) / float64(len(services))
}
