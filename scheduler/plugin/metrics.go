package plugin

import (
	"k8s.io/component-base/metrics"

	"rowmill.io/scheduler/placement"
)

// ruleMetrics count what each rule rejects.
type ruleMetrics struct {
	nodes      [placement.RuleCount]metrics.CounterMetric
	pods       [placement.RuleCount]metrics.CounterMetric
	unlabelled *nodeSet
}

// nodeSet is a set of nodes with a gauge of its size.
type nodeSet struct {
	names map[string]bool
	gauge *metrics.Gauge
}

func newRuleMetrics(register func(...metrics.Registerable)) *ruleMetrics {
	options := func(name, help string) *metrics.CounterOpts {
		return &metrics.CounterOpts{Subsystem: "rowmill_scheduler", Name: name, Help: help, StabilityLevel: metrics.ALPHA}
	}
	nodes := metrics.NewCounterVec(options("node_rejections_total", "Nodes that a rule rejected for a pod, in all attempts."), []string{"rule"})
	pods := metrics.NewCounterVec(options("unschedulable_attempts_total", "Attempts to place a pod of a service that failed, by each rule that rejected a node."), []string{"rule"})
	unlabelled := metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "rowmill_scheduler", Name: "unlabelled_nodes",
		Help: "Nodes without a label of a spine or leaf.", StabilityLevel: metrics.ALPHA,
	})
	register(nodes, pods, unlabelled)
	m := &ruleMetrics{unlabelled: &nodeSet{map[string]bool{}, unlabelled}}
	for rule := range placement.RuleCount {
		m.pods[rule] = pods.WithLabelValues(rule.String())
		if reasons[rule] != "" {
			m.nodes[rule] = nodes.WithLabelValues(rule.String())
		}
	}
	return m
}

func (m *ruleMetrics) node(rule placement.Rule) { m.nodes[rule].Inc() }

func (m *ruleMetrics) pod(rule placement.Rule) { m.pods[rule].Inc() }

// add reports whether the node is the first of the set.
func (s *nodeSet) add(name string) bool {
	s.names[name] = true
	s.gauge.Set(float64(len(s.names)))
	return len(s.names) == 1
}

func (s *nodeSet) remove(name string) {
	delete(s.names, name)
	s.gauge.Set(float64(len(s.names)))
}
