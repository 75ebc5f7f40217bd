package study

import (
	"fmt"
	"slices"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/chart"
	"rowmill.io/scheduler/placement/dataset"
)

// Charts of the paper's figures, and of the yardstick and the trace; map keys are file names.

// YardstickPictures draws allocation and fragments over arriving pods.
func YardstickPictures(result *YardstickResult) map[string]*chart.Figure {
	allocated := &chart.Figure{Title: "GPUs allocated while pods arrive (2023 trace)", X: "GPUs requested, % of all", Y: "GPUs allocated, % of all"}
	fragments := &chart.Figure{Title: "GPU fragments while pods arrive (2023 trace)", X: "GPUs requested, % of all", Y: "fragments, % of all GPUs"}
	seen := map[string]bool{}
	for i := range result.Runs {
		run := &result.Runs[i]
		if seen[run.Policy] {
			continue
		}
		seen[run.Policy] = true
		a, f := chart.Series{Name: run.Policy}, chart.Series{Name: run.Policy}
		for _, point := range run.Curve {
			a.X, a.Y = append(a.X, point.Arrived), append(a.Y, point.Allocated)
			f.X, f.Y = append(f.X, point.Arrived), append(f.Y, point.Fragments)
		}
		allocated.Series, fragments.Series = append(allocated.Series, a), append(fragments.Series, f)
	}
	return map[string]*chart.Figure{"yardstick_allocated": allocated, "yardstick_fragments": fragments}
}

// ClusterHPictures draws figures 3, 4, 18 and 19.
func ClusterHPictures(data *Data, result *HResult) map[string]*chart.Figure {
	residual := chart.Series{Name: "a node", Kind: chart.Dots}
	for _, node := range result.Nodes {
		residual.X, residual.Y = append(residual.X, node[0]), append(residual.Y, node[1])
	}
	before := chart.Series{Name: "before", Kind: chart.Bars}
	after := chart.Series{Name: "after", Kind: chart.Bars}
	gpusBefore, gpusAfter := before, after
	var labels []string
	for i := range result.Levels {
		level := &result.Levels[i]
		labels = append(labels, fmt.Sprintf("%.0f %%", 100*level.Level))
		add := func(s *chart.Series, figure string) {
			s.X = append(s.X, float64(i))
			s.Y = append(s.Y, level.Figures[figure].Mean)
		}
		add(&before, "before_cores")
		add(&after, "after_cores")
		add(&gpusBefore, "before_gpus")
		add(&gpusAfter, "after_gpus")
	}
	whole := Whole(data.Trace, Larger)
	var nodes []float64
	for i := range data.Nodes {
		nodes = append(nodes, float64(data.Nodes[i].Cores)/1000/float64(max(len(data.Nodes[i].GPUs), 1)))
	}
	cores, memory := [3][]float64{}, [3][]float64{}
	for _, jobs := range [][]dataset.Lifetime{data.Trace, whole} {
		for i := range jobs {
			in := &jobs[i].Instance
			cores[in.Role] = append(cores[in.Role], float64(in.Cores)/1000)
			memory[in.Role] = append(memory[in.Role], float64(in.Memory)/1024)
		}
	}
	// A monolith has one GPU.
	ratio := slices.Sorted(slices.Values(cores[placement.RoleWhole]))
	requests := func(title, axis string, values [3][]float64) *chart.Figure {
		figure := &chart.Figure{Title: title, X: axis, Y: "instances, %"}
		for role, name := range []string{"CPU", "dense", "monolith"} {
			figure.Series = append(figure.Series, chart.CDF(name, slices.Sorted(slices.Values(values[role]))))
		}
		return figure
	}
	slices.Sort(nodes)
	return map[string]*chart.Figure{
		"figure_3": {
			Title: "Free cores and GPUs of cluster H at 90 % allocation", X: "free cores", Y: "free GPUs",
			Series: []chart.Series{residual},
		},
		"figure_4": {
			Title: "Cores per GPU", X: "cores per GPU", Y: "nodes or monoliths, %",
			Series: []chart.Series{chart.CDF("2023 nodes", nodes), chart.CDF("monoliths", ratio)},
		},
		"figure_18_cores":  requests("Cores requested before and after the split", "cores", cores),
		"figure_18_memory": requests("Memory requested before and after the split", "GiB", memory),
		"figure_19_cores": {
			Title: "CPU fragments of cluster H", X: "allocated", Y: "cores", Labels: labels,
			Series: []chart.Series{before, after},
		},
		"figure_19_gpus": {
			Title: "GPU fragments of cluster H", X: "allocated", Y: "GPUs", Labels: labels,
			Series: []chart.Series{gpusBefore, gpusAfter},
		},
	}
}

// TracePictures compares policies on the split trace.
func TracePictures(result *TraceResult) map[string]*chart.Figure {
	bars := func(title, unit string, figures ...string) *chart.Figure {
		f := &chart.Figure{Title: title, X: "policy, trace split", Y: unit, Labels: TracePolicies}
		for _, name := range figures {
			s := chart.Series{Name: name, Kind: chart.Bars}
			for i, policy := range TracePolicies {
				s.X = append(s.X, float64(i))
				s.Y = append(s.Y, result.Summary["split "+policy][name].Mean)
			}
			f.Series = append(f.Series, s)
		}
		return f
	}
	return map[string]*chart.Figure{
		"trace_crossings": bars("Pairs of CPU and dense instances below different switches", "% of pairs",
			"service_leaf_crossings_percent", "leaf_crossings_percent", "spine_crossings_percent"),
		"trace_unplaced": bars("Instances that were never placed", "% of instances", "unplaced_percent"),
		"trace_near":     bars("NIC and devices on one PCIe switch or NUMA node", "% of instances", "same_switch_percent", "same_numa_percent"),
		"trace_nodes":    bars("Nodes in use", "nodes", "nodes_mean", "nodes_peak"),
	}
}

// LimitsPictures compares sizes of leaves.
func LimitsPictures(result *LimitsResult) map[string]*chart.Figure {
	sizes := &chart.Figure{Title: "Pairs of CPU and dense instances below different leaves", X: "nodes below a leaf, of 4,096", Y: "% of all pairs"}
	for _, one := range []struct{ name, figure string }{
		{"rowmill", "rowmill_leaf_crossings_percent"},
		{"least-allocated", "least-allocated_leaf_crossings_percent"},
		{"lower bound", "least-allocated_fewest_leaf_crossings_percent"},
	} {
		s := chart.Series{Name: one.name, Kind: chart.Bars}
		for i, factor := range leafFactors {
			s.X = append(s.X, float64(i))
			s.Y = append(s.Y, result.Figures[leavesOf(factor)][one.figure].Mean)
		}
		sizes.Series = append(sizes.Series, s)
	}
	for _, factor := range leafFactors {
		sizes.Labels = append(sizes.Labels, fmt.Sprint(leafNodes*factor))
	}
	return map[string]*chart.Figure{"limits_leaf_sizes": sizes}
}
