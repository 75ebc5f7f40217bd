// Package kube reads the objects of a cluster as printed by kubectl: nodes, pods, resource slices and resource claims.
package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/fragment"
)

// Labels holds the keys of the labels with a node's position in the network.
type Labels struct {
	Zone, Spine, Leaf string
}

// DefaultLabels are the labels set by NVIDIA's topology tools and Kubernetes.
var DefaultLabels = Labels{
	Zone: "topology.kubernetes.io/zone", Spine: "network.topology.nvidia.com/spine", Leaf: "network.topology.nvidia.com/leaf",
}

// Labels and annotations of a pod that belongs to a service.
const (
	ServiceLabel      = "rowmill.io/service"
	RoleLabel         = "rowmill.io/role"
	DensityAnnotation = "rowmill.io/density"
	GroupAnnotation   = "rowmill.io/group"
)

// Describe sets what a pod says about an instance by labels and annotations: service, role, density and group. A pod
// without a service is a service of its own.
func Describe(in *placement.Instance, labels, annotations map[string]string) error {
	in.Service = labels[ServiceLabel]
	if in.Service == "" {
		in.Service = "pod " + in.Name
	}
	if text := labels[RoleLabel]; text != "" {
		role, err := placement.ParseRole(text)
		if err != nil {
			return fmt.Errorf("label %s: %w", RoleLabel, err)
		}
		in.Role = role
	}
	for _, field := range []struct {
		name string
		set  *int
	}{{DensityAnnotation, &in.Density}, {GroupAnnotation, &in.Group}} {
		if text := annotations[field.name]; text != "" {
			number, err := strconv.Atoi(text)
			if err != nil || number < 0 {
				return fmt.Errorf("annotation %s must be a whole number >= 0, got %q", field.name, text)
			}
			*field.set = number
		}
	}
	return nil
}

// Pod is a pod with the node that it is bound to, or "".
type Pod struct {
	placement.Instance
	Node string
	// gpus lists the GPUs that its claims hold, whole or in part.
	gpus []gpuKey
}

// Snapshot is the state of a cluster at one time, without ended pods.
type Snapshot struct {
	Nodes []placement.Node
	Pods  []Pod
	// Warnings lists objects that were read but may not mean what they seem to.
	Warnings []string
}

// Read reads one JSON list.
func Read(r io.Reader, labels Labels) (*Snapshot, error) {
	var all list
	if err := json.NewDecoder(r).Decode(&all); err != nil {
		return nil, fmt.Errorf("read the JSON list that kubectl prints with -o json: %w", err)
	}
	if all.Kind != "List" && all.Kind != "" {
		return nil, fmt.Errorf("the JSON must be of kind List, as kubectl get prints it, got %q", all.Kind)
	}
	s := &Snapshot{}
	devices, err := readDevices(all.Items)
	if err != nil {
		return nil, err
	}
	unlabelled := 0
	for i := range all.Items {
		o := &all.Items[i]
		switch o.Kind {
		case "Node":
			if o.Spec.Unschedulable {
				s.warn("node %q is cordoned: left out, with its pods", o.Metadata.Name)
				continue
			}
			node, err := readNode(o, labels, devices)
			if err != nil {
				return nil, fmt.Errorf("node %q: %w", o.Metadata.Name, err)
			}
			if node.Spine == "" || node.Leaf == "" {
				unlabelled++
			}
			if o.Status.Allocatable[GPUResource] != "" && len(devices.byNode[node.Name]) > 0 {
				s.warn("node %q offers GPUs as %s and in resource slices: the slices count", node.Name, GPUResource)
			}
			s.Nodes = append(s.Nodes, node)
		case "Pod":
			if o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed" {
				continue
			}
			pod, err := readPod(o, devices)
			if err != nil {
				return nil, fmt.Errorf("pod %q: %w", o.Metadata.key(), err)
			}
			if pod.Node == "" && len(o.Spec.ResourceClaims) > len(pod.gpus) {
				s.warn("pod %q waits for claims that are not allocated: the devices that it requests are not counted", pod.Name)
			}
			s.Pods = append(s.Pods, pod)
		}
	}
	if unlabelled > 0 {
		s.warn("%d of %d nodes lack the label %s or %s: they count as one spine and leaf", unlabelled, len(s.Nodes), labels.Spine, labels.Leaf)
	}
	slices.SortFunc(s.Nodes, func(a, b placement.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Pods, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return s, nil
}

func (s *Snapshot) warn(format string, arguments ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, arguments...))
}

func readNode(o *object, labels Labels, devices *devices) (placement.Node, error) {
	for _, name := range []string{"cpu", "memory"} {
		if o.Status.Allocatable[name] == "" {
			return placement.Node{}, fmt.Errorf("status.allocatable has no %s", name)
		}
	}
	a, err := o.Status.Allocatable.amounts()
	if err != nil {
		return placement.Node{}, fmt.Errorf("status.allocatable: %w", err)
	}
	node := placement.Node{
		Name: o.Metadata.Name, Zone: o.Metadata.Labels[labels.Zone], Spine: o.Metadata.Labels[labels.Spine], Leaf: o.Metadata.Labels[labels.Leaf],
		Resources: placement.Resources{Cores: a.cores, Memory: a.memory, Disk: a.disk},
	}
	node.GPUs = devices.gpus(node.Name)
	if node.GPUs == nil {
		for range a.gpus {
			node.GPUs = append(node.GPUs, placement.GPU{Locality: placement.Anywhere})
		}
	}
	for range a.nic / 100 {
		node.NICs = append(node.NICs, placement.NIC{Locality: placement.Anywhere})
	}
	return node, nil
}

func readPod(o *object, devices *devices) (Pod, error) {
	a, err := podRequest(&o.Spec)
	if err != nil {
		return Pod{}, err
	}
	pod := Pod{Node: o.Spec.NodeName, Instance: placement.Instance{
		Name:      o.Metadata.key(),
		Resources: placement.Resources{Cores: a.cores, Memory: a.memory, Disk: a.disk},
		GPUs:      a.gpus, NIC: a.nic,
	}}
	pod.Role = placement.RoleCPU
	if a.gpus > 0 || len(o.Spec.ResourceClaims) > 0 {
		pod.Role = placement.RoleWhole
	}
	if err := Describe(&pod.Instance, o.Metadata.Labels, o.Metadata.Annotations); err != nil {
		return pod, err
	}
	pod.gpus = devices.claimed(o)
	return pod, nil
}

// podRequest computes the request as the scheduler does: all containers and sidecars, or the largest init container
// together with the sidecars before it, whichever is larger; plus the overhead.
func podRequest(s *spec) (amounts, error) {
	var running, most amounts
	for i := range s.InitContainers {
		c := &s.InitContainers[i]
		a, err := c.Resources.Requests.amounts()
		if err != nil {
			return a, fmt.Errorf("init container %d: %w", i, err)
		}
		if c.RestartPolicy == "Always" {
			running = running.plus(a)
			most = most.max(running)
		} else {
			most = most.max(running.plus(a))
		}
	}
	for i := range s.Containers {
		a, err := s.Containers[i].Resources.Requests.amounts()
		if err != nil {
			return a, fmt.Errorf("container %d: %w", i, err)
		}
		running = running.plus(a)
	}
	overhead, err := s.Overhead.amounts()
	if err != nil {
		return overhead, fmt.Errorf("overhead: %w", err)
	}
	return most.max(running).plus(overhead), nil
}

// Fragments returns nodes with their free resources, and the requests of all pods. Pods on unlisted nodes are left out.
func (s *Snapshot) Fragments() ([]fragment.Node, []fragment.Pod) {
	nodes := make([]fragment.Node, len(s.Nodes))
	index := map[string]int{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		nodes[i] = fragment.NewNode(n.Name, n.Cores, n.Memory, len(n.GPUs))
		nodes[i].Disk = n.Disk
		index[n.Name] = i
	}
	var pods []fragment.Pod
	for i := range s.Pods {
		pod := &s.Pods[i]
		request := fragment.Pod{Cores: pod.Cores, Memory: pod.Memory, Disk: pod.Disk, GPUs: pod.GPUs}
		if pod.GPUs > 0 {
			request.Share = fragment.Whole
		}
		at, bound := index[pod.Node]
		if len(pod.gpus) > 0 {
			request.GPUs, request.Share = len(pod.gpus), pod.gpus[0].share*fragment.Whole/eighths
		}
		pods = append(pods, request)
		if !bound {
			continue
		}
		n := &nodes[at]
		n.Cores, n.Memory, n.Disk = max(n.Cores-pod.Cores, 0), max(n.Memory-pod.Memory, 0), max(n.Disk-pod.Disk, 0)
		for _, held := range pod.gpus {
			n.GPUs[held.index] = max(n.GPUs[held.index]-held.share*fragment.Whole/eighths, 0)
		}
		if len(pod.gpus) == 0 {
			left := pod.GPUs
			for gpu := range n.GPUs {
				if left > 0 && n.GPUs[gpu] == fragment.Whole {
					n.GPUs[gpu] = 0
					left--
				}
			}
		}
	}
	return nodes, pods
}

// Cluster places the running pods on their nodes. Pods that do not fit on their node become warnings.
func (s *Snapshot) Cluster(options placement.Options) (*placement.Cluster, error) {
	c, err := placement.NewCluster(options)
	if err != nil {
		return nil, err
	}
	groups := map[string]int{}
	for i := range s.Pods {
		groups[s.Pods[i].Service] = max(groups[s.Pods[i].Service], s.Pods[i].Group+1)
	}
	for name, count := range groups {
		if err := c.Declare(placement.Service{Name: name, Groups: count}); err != nil {
			return nil, err
		}
	}
	known := map[string]bool{}
	for i := range s.Nodes {
		if err := c.AddNode(s.Nodes[i]); err != nil {
			return nil, err
		}
		known[s.Nodes[i].Name] = true
	}
	spines, seen := map[string]map[[2]string]bool{}, map[gpuKey]bool{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		if !known[pod.Node] {
			continue
		}
		in := pod.Instance
		for _, held := range pod.gpus {
			// A GPU counts as in use as soon as it has a partition.
			if gpu := (gpuKey{held.node, held.index, eighths}); !seen[gpu] {
				seen[gpu] = true
				in.GPUs++
			}
		}
		if _, err := c.Bind(in, pod.Node); err != nil {
			s.warn("bound pod is not counted: %v", err)
			continue
		}
		at, _ := slices.BinarySearchFunc(s.Nodes, pod.Node, func(n placement.Node, name string) int { return cmp.Compare(n.Name, name) })
		key := fmt.Sprintf("%s, group %d", pod.Service, pod.Group)
		if spines[key] == nil {
			spines[key] = map[[2]string]bool{}
		}
		spines[key][[2]string{s.Nodes[at].Zone, s.Nodes[at].Spine}] = true
	}
	for key, held := range spines {
		if len(held) > 1 {
			s.warn("service %s runs below %d spines already: new pods join the spine with most of them", key, len(held))
		}
	}
	slices.Sort(s.Warnings)
	return c, nil
}

// Find returns a pod by namespace/name.
func (s *Snapshot) Find(name string) (*Pod, error) {
	for i := range s.Pods {
		if s.Pods[i].Name == name {
			return &s.Pods[i], nil
		}
	}
	return nil, fmt.Errorf("pod %q is not in the list; name it as namespace/name", name)
}
