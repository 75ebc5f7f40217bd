package plugin

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

var (
	_ fwk.PreScorePlugin  = &Plugin{}
	_ fwk.ScorePlugin     = &Plugin{}
	_ fwk.ScoreExtensions = &Plugin{}
)

// PreScore ranks the leaves for the pod.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if !belongs(pod) {
		return fwk.NewStatus(fwk.Skip)
	}
	c, status := cycleOf(state)
	if status != nil {
		return status
	}
	// The ranking refreshes cached bounds of the cluster, so a read lock does not suffice.
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	c.preference = c.question.Prefer()
	return nil
}

// Score returns the negative rank of a node; NormalizeScore maps it to the range of scores.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c, status := cycleOf(state)
	if status != nil {
		return 0, status
	}
	p.state.mu.RLock()
	defer p.state.mu.RUnlock()
	return -int64(c.preference.Rank(node.Node().Name)), nil
}

// ScoreExtensions returns the plugin.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore gives the best nodes the highest score, the next ones one less, and so on.
func (p *Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	position := map[int64]int64{}
	for i := range scores {
		position[scores[i].Score] = 0
	}
	distinct := make([]int64, 0, len(position))
	for score := range position {
		distinct = append(distinct, score)
	}
	slices.SortFunc(distinct, func(a, b int64) int { return cmp.Compare(b, a) })
	for at, score := range distinct {
		position[score] = max(fwk.MaxScore-int64(at), fwk.MinScore)
	}
	for i := range scores {
		scores[i].Score = position[scores[i].Score]
	}
	return nil
}
