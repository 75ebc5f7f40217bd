package testplane

import (
	"fmt"
	"slices"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/kube"
)

// Replay repeats the decisions of a scheduler in their order, from what kubectl prints afterwards. All pods existed
// before the first decision. It returns the number of decisions that are among the best nodes, given those before them,
// and a text for each other one.
func Replay(s *kube.Snapshot, order []string) (best int, others []string, err error) {
	cluster, err := placement.NewCluster(placement.Options{})
	if err != nil {
		return 0, nil, err
	}
	for i := range s.Nodes {
		if err := cluster.AddNode(s.Nodes[i]); err != nil {
			return 0, nil, err
		}
	}
	pods, services := map[string]*kube.Pod{}, map[string]placement.Service{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		pods[pod.Name] = pod
		service := services[pod.Service]
		service.Name = pod.Service
		service.Expected = service.Expected.Plus(placement.DemandOf([]placement.Instance{pod.Instance}), 1)
		services[pod.Service] = service
	}
	for _, service := range services {
		if err := cluster.Declare(service); err != nil {
			return 0, nil, err
		}
	}
	for _, name := range order {
		pod := pods[name]
		if pod == nil {
			return best, others, fmt.Errorf("pod %q was placed but does not exist", name)
		}
		question, err := cluster.Ask(pod.Instance)
		if err != nil {
			return best, others, err
		}
		nodes, err := bestNodes(question, s.Nodes)
		if err != nil {
			return best, others, err
		}
		if slices.Contains(nodes, pod.Node) {
			best++
		} else {
			others = append(others, fmt.Sprintf("pod %s is on node %s; best are %v", name, pod.Node, nodes))
		}
		if err := cluster.Adopt(pod.Instance, pod.Node); err != nil {
			return best, others, err
		}
	}
	return best, others, nil
}

func bestNodes(question *placement.Question, nodes []placement.Node) ([]string, error) {
	preference := question.Prefer()
	var names []string
	least := 0
	for i := range nodes {
		name := nodes[i].Name
		missed, err := question.Misses(name, placement.Change{})
		if err != nil {
			return nil, err
		}
		if len(missed) > 0 {
			continue
		}
		switch rank := preference.Rank(name); {
		case len(names) == 0 || rank < least:
			names, least = []string{name}, rank
		case rank == least:
			names = append(names, name)
		}
	}
	return names, nil
}
