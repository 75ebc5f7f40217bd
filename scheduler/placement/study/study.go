// Package study measures how many resources are saved by splitting recommendation models into CPU and dense instances:
// on FGD's published benchmark as a reference (the yardstick), on the paper's cluster H, on the published trace, and on
// the day of a promotion.
package study

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"rowmill.io/scheduler/placement/dataset"
	"rowmill.io/scheduler/placement/fragment"
)

// Data holds the public traces, or generated ones of the same shape.
type Data struct {
	Nodes []fragment.Node
	Pods  []fragment.Pod
	Trace []dataset.Lifetime
}

// Seeds holds the number of seeds of each part.
type Seeds struct {
	Yardstick, ClusterH, Trace, Limits int
}

// FullSeeds are for published results; QuickSeeds for a run within three minutes.
var (
	FullSeeds  = Seeds{Yardstick: 10, ClusterH: 20, Trace: 20, Limits: 5}
	QuickSeeds = Seeds{Yardstick: 3, ClusterH: 5, Trace: 2, Limits: 2}
)

// afterSeed is the first seed of cluster H; the knobs were fitted with other seeds.
const afterSeed = 101

// parallel calls work for each number below count, on as many goroutines as processors, and keeps the order of results.
func parallel[Run any](count int, work func(i int) Run) []Run {
	runs := make([]Run, count)
	next := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				runs[i] = work(i)
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	workers.Wait()
	return runs
}

// YardstickResult holds every run, and the means per policy.
type YardstickResult struct {
	Summary map[string]map[string]Interval `json:"summary"`
	Runs    []YardstickRun                 `json:"runs"`
}

// RunYardstick runs part (a).
func RunYardstick(data *Data, seeds int) YardstickResult {
	result := YardstickResult{Summary: map[string]map[string]Interval{}}
	result.Runs = parallel(len(YardstickPolicies)*seeds, func(i int) YardstickRun {
		return Yardstick(data.Nodes, data.Pods, YardstickPolicies[i/seeds], uint64(i%seeds)+1)
	})
	for i, policy := range YardstickPolicies {
		runs := result.Runs[i*seeds : (i+1)*seeds]
		result.Summary[policy] = map[string]Interval{
			"allocated_percent": over(runs, func(r *YardstickRun) float64 { return r.Allocated }),
			"fragments_percent": over(runs, func(r *YardstickRun) float64 { return r.Fragments }),
		}
	}
	return result
}

// HResult holds the fragments of cluster H by level, also under other rules.
type HResult struct {
	Knobs  Knobs        `json:"knobs"`
	Levels []HLevel     `json:"levels"`
	Others []HLevel     `json:"sensitivity"`
	Runs   []HRun       `json:"runs"`
	Nodes  [][2]float64 `json:"free_cores_and_gpus"`
}

// HLevel is one allocation level under one policy, one rule for monoliths and one for pods.
type HLevel struct {
	Level   float64             `json:"level"`
	Policy  string              `json:"policy"`
	Merge   string              `json:"monoliths"`
	Pods    string              `json:"pods"`
	Figures map[string]Interval `json:"figures"`
}

// Merges are the rules for merging an app's instances into monoliths; the first is the main one.
var Merges = []struct {
	Name string
	Rule Merge
}{
	{"larger half", Larger},
	{"dense instances", func(_, dense int) int { return dense }},
	{"cpu instances", func(cpu, _ int) int { return cpu }},
}

// HLevels are the levels in the chart.
var HLevels = []float64{0.50, 0.60, 0.70, 0.80, 0.85, 0.90, 0.95}

// RunClusterH runs part (b).
func RunClusterH(data *Data, seeds int) HResult {
	result := HResult{Knobs: FittedKnobs}
	w := NewWorkload(data.Pods, data.Trace, Larger)
	runs := parallel(len(HLevels)*seeds, func(i int) HRun {
		return ClusterH(&w, FittedKnobs, "best-fit", HLevels[i/seeds], uint64(i%seeds)+afterSeed)
	})
	for i, level := range HLevels {
		part := runs[i*seeds : (i+1)*seeds]
		result.Levels = append(result.Levels, hLevel(level, "best-fit", Merges[0].Name, part))
		if level == fittedLevel {
			for j := range part[0].nodes {
				n := &part[0].nodes[j]
				result.Nodes = append(result.Nodes, [2]float64{float64(n.Cores) / 1000, float64(n.FreeGPU()) / fragment.Whole})
			}
		}
	}
	result.Runs = runs
	for _, policy := range []string{"fgd", "random"} {
		part := parallel(seeds, func(i int) HRun {
			return ClusterH(&w, FittedKnobs, policy, fittedLevel, uint64(i)+afterSeed)
		})
		result.Others = append(result.Others, hLevel(fittedLevel, policy, Merges[0].Name, part))
	}
	for _, merge := range Merges[1:] {
		other := NewWorkload(data.Pods, data.Trace, merge.Rule)
		part := parallel(seeds, func(i int) HRun {
			return ClusterH(&other, FittedKnobs, "best-fit", fittedLevel, uint64(i)+afterSeed)
		})
		result.Others = append(result.Others, hLevel(fittedLevel, "best-fit", merge.Name, part))
	}
	for i := range PodRules[1:] {
		rule := &PodRules[i+1]
		other := NewWorkload(rule.apply(data.Pods), data.Trace, Larger)
		other.reserve = rule.Reserve
		part := parallel(seeds, func(i int) HRun {
			return ClusterH(&other, FittedKnobs, "best-fit", fittedLevel, uint64(i)+afterSeed)
		})
		level := hLevel(fittedLevel, "best-fit", Merges[0].Name, part)
		level.Pods = rule.Name
		result.Others = append(result.Others, level)
	}
	return result
}

func hLevel(level float64, policy, merge string, runs []HRun) HLevel {
	figures := map[string]Interval{}
	totals := func(name string, of func(*HRun) *fragment.Totals) {
		figures[name+"_cores"] = over(runs, func(r *HRun) float64 { return of(r).FragmentCores })
		figures[name+"_gpus"] = over(runs, func(r *HRun) float64 { return of(r).FragmentGPUs })
		figures[name+"_no_class_cores"] = over(runs, func(r *HRun) float64 { return of(r).NoneCores })
		figures[name+"_no_class_gpus"] = over(runs, func(r *HRun) float64 { return of(r).NoneGPUs })
	}
	totals("before", func(r *HRun) *fragment.Totals { return &r.Before })
	totals("after", func(r *HRun) *fragment.Totals { return &r.After })
	totals("all_before", func(r *HRun) *fragment.Totals { return &r.AllBefore })
	totals("all_after", func(r *HRun) *fragment.Totals { return &r.AllAfter })
	figures["saved_cores_percent"] = over(runs, func(r *HRun) float64 {
		return 100 * (1 - r.After.FragmentCores/r.Before.FragmentCores)
	})
	figures["saved_gpus_percent"] = over(runs, func(r *HRun) float64 {
		return 100 * (1 - r.After.FragmentGPUs/r.Before.FragmentGPUs)
	})
	figures["partial_gpus"] = over(runs, func(r *HRun) float64 { return r.Partial })
	figures["most_saved_gpus_percent"] = over(runs, func(r *HRun) float64 { return 100 * (1 - r.Partial/r.Before.FragmentGPUs) })
	figures["allocated_cores"] = over(runs, func(r *HRun) float64 { return r.AllocatedCores })
	figures["allocated_gpus"] = over(runs, func(r *HRun) float64 { return r.AllocatedGPUs })
	return HLevel{Level: level, Policy: policy, Merge: merge, Pods: PodRules[0].Name, Figures: figures}
}

// TraceResult holds every replay, and the means per policy and form.
type TraceResult struct {
	// OwnWaitP99 is the 99th percentile of waiting times in the trace itself, in seconds.
	OwnWaitP99 float64                        `json:"own_wait_s_p99"`
	Summary    map[string]map[string]Interval `json:"summary"`
	Runs       []TraceRun                     `json:"runs"`
}

// RunTrace runs part (c).
func RunTrace(data *Data, seeds int) (TraceResult, error) {
	result := TraceResult{OwnWaitP99: ownWait(data.Trace), Summary: map[string]map[string]Interval{}}
	forms := []string{"split", "whole"}
	errs := make([]error, len(forms)*len(TracePolicies)*seeds)
	result.Runs = parallel(len(errs), func(i int) TraceRun {
		form, policy := forms[i/seeds/len(TracePolicies)], TracePolicies[i/seeds%len(TracePolicies)]
		var run TraceRun
		run, errs[i] = Trace(data.Trace, policy, form, uint64(i%seeds)+1)
		return run
	})
	for _, err := range errs {
		if err != nil {
			return result, err
		}
	}
	for i := 0; i < len(result.Runs); i += seeds {
		runs := result.Runs[i : i+seeds]
		figures := map[string]Interval{}
		for _, figure := range traceFigures {
			figures[figure.name] = over(runs, figure.of)
		}
		result.Summary[fmt.Sprintf("%s %s", runs[0].Form, runs[0].Policy)] = figures
	}
	return result, nil
}

var traceFigures = []struct {
	name string
	of   func(*TraceRun) float64
}{
	{"unplaced", func(r *TraceRun) float64 { return float64(r.Unplaced) }},
	{"unplaced_percent", func(r *TraceRun) float64 { return 100 * float64(r.Unplaced) / float64(r.Instances) }},
	{"waited", func(r *TraceRun) float64 { return float64(r.Waited) }},
	{"wait_s_p99", func(r *TraceRun) float64 { return r.WaitP99 }},
	{"leaf_crossings_percent", func(r *TraceRun) float64 { return r.Crossings }},
	{"service_leaf_crossings_percent", func(r *TraceRun) float64 { return r.ServiceCrossings }},
	{"fewest_leaf_crossings_percent", func(r *TraceRun) float64 { return r.Fewest }},
	{"service_fewest_leaf_crossings_percent", func(r *TraceRun) float64 { return r.ServiceFewest }},
	{"spine_crossings_percent", func(r *TraceRun) float64 { return r.SpineCrossings }},
	{"same_switch_percent", func(r *TraceRun) float64 { return r.NearSwitch }},
	{"same_numa_percent", func(r *TraceRun) float64 { return r.NearNUMA }},
	{"nic_peak_percent", func(r *TraceRun) float64 { return r.NICPeak }},
	{"uplink_peak_percent", func(r *TraceRun) float64 { return r.UplinkPeak }},
	{"nodes_peak", func(r *TraceRun) float64 { return float64(r.NodesPeak) }},
	{"nodes_mean", func(r *TraceRun) float64 { return r.NodesMean }},
	{"density_breaches", func(r *TraceRun) float64 { return float64(r.DensityBreaches) }},
	{"uplink_breaches", func(r *TraceRun) float64 { return float64(r.UplinkBreaches) }},
	{"spine_breaches", func(r *TraceRun) float64 { return float64(r.SpineBreaches) }},
}

// ownWait returns the 99th percentile of the time between creation and scheduling in the trace.
func ownWait(jobs []dataset.Lifetime) float64 {
	var waits []float64
	for i := range jobs {
		if jobs[i].Scheduled >= 0 {
			waits = append(waits, jobs[i].Scheduled-jobs[i].Created)
		}
	}
	if len(waits) == 0 {
		return 0
	}
	slices.Sort(waits)
	return waits[len(waits)*99/100]
}
