package testplane

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"rowmill.io/scheduler/placement/kube"
)

// Check returns every broken rule of a cluster. It reads API objects only and shares no code with the plugin, so that a
// mistake in one is not repeated in the other.
func Check(nodes []v1.Node, pods []v1.Pod) []string {
	c := checker{nodes: map[string]*v1.Node{}, on: map[string][]*v1.Pod{}}
	for i := range nodes {
		c.nodes[nodes[i].Name] = &nodes[i]
	}
	for i := range pods {
		if name := pods[i].Spec.NodeName; name != "" {
			if c.nodes[name] == nil {
				c.broken("pod %s is bound to node %q, which does not exist", pods[i].Name, name)
			}
			c.on[name] = append(c.on[name], &pods[i])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.on)) {
		if node := c.nodes[name]; node != nil {
			c.resources(node, c.on[name])
			c.nics(node, c.on[name])
			c.density(node, c.on[name])
		}
	}
	c.spines()
	c.uplinks()
	return c.found
}

type checker struct {
	nodes map[string]*v1.Node
	on    map[string][]*v1.Pod
	found []string
}

func (c *checker) broken(format string, arguments ...any) {
	c.found = append(c.found, fmt.Sprintf(format, arguments...))
}

// requested adds up one resource over the containers of a pod, in thousandths. Pods of tests have no init containers.
func requested(pod *v1.Pod, name v1.ResourceName) int64 {
	sum := int64(0)
	for i := range pod.Spec.Containers {
		amount := pod.Spec.Containers[i].Resources.Requests[name]
		sum += amount.MilliValue()
	}
	return sum
}

func (c *checker) resources(node *v1.Node, pods []*v1.Pod) {
	for name, has := range node.Status.Allocatable {
		sum := int64(0)
		for _, pod := range pods {
			if sum += requested(pod, name); name == v1.ResourcePods {
				sum += 1000
			}
		}
		if sum > has.MilliValue() {
			c.broken("node %s: pods request %v of %s, it has %v", node.Name, sum, name, has.MilliValue())
		}
	}
}

func nicPercent(pod *v1.Pod) int { return int(requested(pod, kube.NICResource) / 1000) }

func nicCount(node *v1.Node) int {
	has := node.Status.Allocatable[kube.NICResource]
	return int(has.Value() / 100)
}

// nics requires that the shares of the pods can be dealt to the NICs of the node, none above 100 %.
func (c *checker) nics(node *v1.Node, pods []*v1.Pod) {
	var shares []int
	for _, pod := range pods {
		if share := nicPercent(pod); share > 0 {
			shares = append(shares, share)
		}
	}
	slices.SortFunc(shares, func(a, b int) int { return cmp.Compare(b, a) })
	if !deal(shares, make([]int, nicCount(node))) {
		c.broken("node %s: shares %v do not fit on %d NICs", node.Name, shares, nicCount(node))
	}
}

// deal tries every assignment of shares, largest first, to NICs with used percents.
func deal(shares, used []int) bool {
	if len(shares) == 0 {
		return true
	}
	for i := range used {
		if used[i]+shares[0] > 100 || slices.Contains(used[:i], used[i]) {
			continue
		}
		used[i] += shares[0]
		if deal(shares[1:], used) {
			return true
		}
		used[i] -= shares[0]
	}
	return false
}

func (c *checker) density(node *v1.Node, pods []*v1.Pod) {
	counts, limits := map[string]int{}, map[string]int{}
	for _, pod := range pods {
		service := pod.Labels[kube.ServiceLabel]
		if service == "" {
			continue
		}
		counts[service]++
		if limit, err := strconv.Atoi(pod.Annotations[kube.DensityAnnotation]); err == nil && limit > 0 && (limits[service] == 0 || limit < limits[service]) {
			limits[service] = limit
		}
	}
	for service, limit := range limits {
		if counts[service] > limit {
			c.broken("node %s: %d pods of service %s, density %d", node.Name, counts[service], service, limit)
		}
	}
}

func spineOf(node *v1.Node) string {
	return node.Labels[kube.DefaultLabels.Zone] + "/" + node.Labels[kube.DefaultLabels.Spine]
}

// spines requires one spine per group of a service, and different ones for its groups.
func (c *checker) spines() {
	type group struct{ service, number string }
	of := map[group]string{}
	groupOf := map[[2]string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.on)) {
		node := c.nodes[name]
		if node == nil {
			continue
		}
		for _, pod := range c.on[name] {
			service := pod.Labels[kube.ServiceLabel]
			if service == "" {
				continue
			}
			g, spine := group{service, pod.Annotations[kube.GroupAnnotation]}, spineOf(node)
			if other, known := of[g]; known && other != spine {
				c.broken("pod %s of service %s, group %q: below spine %s, others below %s", pod.Name, g.service, g.number, spine, other)
			}
			of[g] = spine
			at := [2]string{service, spine}
			if other, known := groupOf[at]; known && other != g.number {
				c.broken("groups %q and %q of service %s are below spine %s", other, g.number, service, spine)
			}
			groupOf[at] = g.number
		}
	}
}

// uplinks requires that the shares below a leaf are at most 80 % of its NICs.
func (c *checker) uplinks() {
	used, nics := map[string]int{}, map[string]int{}
	for name, node := range c.nodes {
		leaf := spineOf(node) + "/" + node.Labels[kube.DefaultLabels.Leaf]
		nics[leaf] += nicCount(node)
		for _, pod := range c.on[name] {
			used[leaf] += nicPercent(pod)
		}
	}
	for _, leaf := range slices.Sorted(maps.Keys(used)) {
		if limit := 80 * nics[leaf]; used[leaf] > limit {
			c.broken("leaf %s: pods use %d %% of a NIC, the uplink admits %d", leaf, used[leaf], limit)
		}
	}
}
