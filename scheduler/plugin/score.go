package plugin

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

var (
	_ fwk.PreScorePlugin  = &Plugin{}
	_ fwk.ScorePlugin     = &Plugin{}
	_ fwk.ScoreExtensions = &Plugin{}
)

// PreScore ranks the leaves for the pod, and the nodes below the best leaf by the devices that the pod would get there.
func (p *Plugin) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if !belongs(pod) {
		return fwk.NewStatus(fwk.Skip)
	}
	c, status := cycleOf(state)
	if status != nil {
		return status
	}
	// The ranking refreshes cached bounds of the cluster, so a read lock does not suffice.
	p.state.mu.Lock()
	c.preference = c.question.Prefer()
	p.state.mu.Unlock()
	if len(pod.Spec.ResourceClaims) == 0 || p.distances == nil {
		return nil
	}
	var err error
	if c.distances, err = p.distances.byNode(ctx, pod, p.best(c, nodes)); err != nil {
		// A score is a preference, so the pod is placed without it.
		p.state.logger.V(2).Info("Nodes are not ranked by the distance of devices", "pod", klog.KObj(pod), "reason", err)
	}
	return nil
}

// best returns the nodes below the best leaf.
func (p *Plugin) best(c *cycle, nodes []fwk.NodeInfo) []*v1.Node {
	p.state.mu.RLock()
	defer p.state.mu.RUnlock()
	var best []*v1.Node
	least := 0
	for _, info := range nodes {
		switch rank := c.preference.Rank(info.Node().Name); {
		case len(best) == 0 || rank < least:
			best, least = append(best[:0], info.Node()), rank
		case rank == least:
			best = append(best, info.Node())
		}
	}
	return best
}

// Score returns the negative rank of a node; NormalizeScore maps it to the range of scores.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c, status := cycleOf(state)
	if status != nil {
		return 0, status
	}
	p.state.mu.RLock()
	defer p.state.mu.RUnlock()
	name := node.Node().Name
	return -int64(c.preference.Rank(name)*(distanceMost+1) + c.distances[name]), nil
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
