package plugin

import (
	"context"

	fwk "k8s.io/kube-scheduler/framework"
)

var _ fwk.PlacementScorePlugin = &Plugin{}

// ScorePlacement scores a set of nodes that is proposed for a group of pods. Half of the score is the share of the pods
// below the leaf with most of them, half the share below the spine where their service runs already, or, for a new
// service, below the spine with most of them.
func (p *Plugin) ScorePlacement(_ context.Context, _ fwk.PodGroupCycleState, _ fwk.PodGroupInfo, proposed *fwk.PodGroupAssignments) (int64, *fwk.Status) {
	type leafKey struct {
		spineKey
		leaf string
	}
	s := p.state
	s.mu.RLock()
	defer s.mu.RUnlock()
	leaves, spines := map[leafKey]int{}, map[spineKey]int{}
	pods, home, mostBelowLeaf, mostBelowSpine := 0, 0, 0, 0
	running := false
	for _, one := range proposed.ProposedAssignments {
		in, err := instanceOf(one.GetPod())
		node, known := s.nodes[one.GetNodeName()]
		if err != nil || !known || !belongs(one.GetPod()) {
			continue
		}
		pods++
		spine := spineKey{node.Zone, node.Spine}
		leaf := leafKey{spine, node.Leaf}
		leaves[leaf]++
		spines[spine]++
		mostBelowLeaf, mostBelowSpine = max(mostBelowLeaf, leaves[leaf]), max(mostBelowSpine, spines[spine])
		if question, err := s.cluster.Ask(in); err == nil && question.Spines() > 0 {
			running = true
			if question.PrefersSpine(spine.zone, spine.name) {
				home++
			}
		}
	}
	if pods == 0 {
		return fwk.MinScore, nil
	}
	if !running {
		home = mostBelowSpine
	}
	return fwk.MaxScore * int64(mostBelowLeaf+home) / int64(2*pods), nil
}

// PlacementScoreExtensions returns nil: the scores are in range.
func (p *Plugin) PlacementScoreExtensions() fwk.PlacementScoreExtensions { return nil }
