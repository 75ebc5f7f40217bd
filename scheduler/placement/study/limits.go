package study

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
)

// What bounds crossings: the size of leaves, the rules, or services that compete for leaves. Three comparisons with the
// trace as it is: the same nodes below larger leaves; each service alone on the empty cluster; and clusters so small that
// every placement can be tried.

// LimitsResult holds the figures of each comparison.
type LimitsResult struct {
	Figures map[string]map[string]Interval `json:"figures"`
}

// leafFactors are the sizes of leaves that are compared, as multiples of leafNodes.
var leafFactors = []int{1, 2, 4, 8}

// leavesOf names the figures of one size of leaves.
func leavesOf(factor int) string { return fmt.Sprintf("leaves_of_%d", leafNodes*factor) }

// RunLimits runs all comparisons.
func RunLimits(data *Data, seeds int) (LimitsResult, error) {
	limits := map[string]map[string]Interval{}
	for _, factor := range leafFactors {
		figures, err := largerLeaves(data.Trace, factor, seeds)
		if err != nil {
			return LimitsResult{}, err
		}
		limits[leavesOf(factor)] = figures
	}
	for _, one := range []struct {
		name   string
		change func(*placement.Instance)
	}{
		{"alone", func(*placement.Instance) {}},
		{"alone_without_density", func(in *placement.Instance) { in.Density = 0 }},
	} {
		jobs := slices.Clone(data.Trace)
		for i := range jobs {
			one.change(&jobs[i].Instance)
		}
		figures, err := eachAlone(jobs, seeds)
		if err != nil {
			return LimitsResult{}, err
		}
		limits[one.name] = figures
	}
	small, err := smallCases(1)
	limits["small"] = small
	return LimitsResult{limits}, err
}

// largerLeaves replays the trace with the nodes below fewer and larger leaves.
func largerLeaves(jobs []dataset.Lifetime, factor, seeds int) (map[string]Interval, error) {
	policies := []string{"rowmill", "least-allocated"}
	errs := make([]error, len(policies)*seeds)
	nodes := traceNodesBelow(factor)
	runs := parallel(len(errs), func(i int) TraceRun {
		var run TraceRun
		run, errs[i] = replay(nodes, jobs, policies[i/seeds], uint64(i%seeds)+1)
		return run
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	figures := map[string]Interval{}
	for i, policy := range policies {
		part := runs[i*seeds : (i+1)*seeds]
		figures[policy+"_leaf_crossings_percent"] = over(part, func(r *TraceRun) float64 { return r.Crossings })
		figures[policy+"_fewest_leaf_crossings_percent"] = over(part, func(r *TraceRun) float64 { return r.Fewest })
	}
	ratios, least := make([]float64, seeds), make([]float64, seeds)
	for i := range seeds {
		ratios[i] = runs[i].Crossings / runs[seeds+i].Crossings
		least[i] = runs[seeds+i].Fewest / runs[seeds+i].Crossings
	}
	figures["ratio"], figures["fewest_ratio"] = IntervalOf(ratios), IntervalOf(least)
	return figures, nil
}

// eachAlone replays each service by itself on the empty cluster, by our rules, and adds up the pairs of all services.
func eachAlone(jobs []dataset.Lifetime, seeds int) (map[string]Interval, error) {
	apps, nodes, end := appsOf(jobs), traceNodes(), 0.0
	for _, e := range eventsOf(jobs, nil) {
		end = max(end, e.time)
	}
	crossings, fewest, largest, share := make([]float64, seeds), make([]float64, seeds), make([]float64, seeds), make([]float64, seeds)
	for seed := range seeds {
		errs := make([]error, len(apps))
		records := parallel(len(apps), func(i int) []pairSample {
			var own []dataset.Lifetime
			for _, role := range apps[i].jobs {
				for _, job := range role {
					own = append(own, *job)
				}
			}
			with, err := newOurs(nodes, own, placement.Hard)
			if err != nil {
				errs[i] = err
				return nil
			}
			record := recordEvents(nodes, own, with, rand.New(rand.NewPCG(uint64(seed)+1, 4)).Perm(len(own)))
			// The state after the last event of a service lasts until the end of the trace.
			record.sampleUntil(end)
			return record.samples
		})
		for _, err := range errs {
			if err != nil {
				return nil, err
			}
		}
		all, most := addSamples(records)
		crossings[seed], fewest[seed] = crossingsOf(all)
		largest[seed], _ = crossingsOf(records[most])
		share[seed] = sharesOf(records[most], all)
	}
	return map[string]Interval{
		"leaf_crossings_percent":                 IntervalOf(crossings),
		"fewest_leaf_crossings_percent":          IntervalOf(fewest),
		"largest_service_leaf_crossings_percent": IntervalOf(largest),
		"largest_service_pairs_percent":          IntervalOf(share),
	}, nil
}

// addSamples adds up the samples of services at equal times, and returns the position of the service with most pairs.
func addSamples(records [][]pairSample) (sum []pairSample, most int) {
	pairs := 0
	for i, samples := range records {
		own := 0
		for at, s := range samples {
			if at == len(sum) {
				sum = append(sum, pairSample{})
			}
			sum[at].pairs += s.pairs
			sum[at].same += s.same
			sum[at].most += s.most
			own += s.pairs
		}
		if own > pairs {
			pairs, most = own, i
		}
	}
	return sum, most
}

// crossingsOf returns the mean percentage of pairs below different leaves, and its lower bound.
func crossingsOf(samples []pairSample) (crossings, fewest float64) {
	count := 0
	for _, s := range samples {
		if s.pairs > 0 {
			crossings += 1 - float64(s.same)/float64(s.pairs)
			fewest += 1 - float64(s.most)/float64(s.pairs)
			count++
		}
	}
	return 100 * crossings / float64(max(count, 1)), 100 * fewest / float64(max(count, 1))
}

// sharesOf returns the mean share of a part in all pairs, in percent.
func sharesOf(part, all []pairSample) float64 {
	sum := 0.0
	for i := range part {
		sum += 100 * float64(part[i].pairs) / float64(max(all[i].pairs, 1)) / float64(len(part))
	}
	return sum
}

// smallCount is the number of clusters that are small enough to try every placement.
const smallCount = 200

// smallCases compares our placement with the best one on small clusters. Cases where ours does not place all instances
// are drawn again.
func smallCases(seed uint64) (map[string]Interval, error) {
	source := rand.New(rand.NewPCG(seed, 5))
	var ours, best, equal []float64
	for len(ours) < smallCount {
		nodes, jobs := smallCase(source)
		with, err := newOurs(nodes, jobs, placement.Hard)
		if err != nil {
			return nil, err
		}
		record := recordEvents(nodes, jobs, with, ranks(jobs, source))
		if record.run.Unplaced > 0 {
			continue
		}
		record.sampleUntil(samplePeriod)
		pairs, same := record.samples[0].pairs, record.samples[0].same
		most := mostTogether(nodes, jobs)
		ours = append(ours, 100*(1-float64(same)/float64(pairs)))
		best = append(best, 100*(1-float64(most)/float64(pairs)))
		equal = append(equal, 100*float64(one(same == most)))
	}
	return map[string]Interval{
		"rowmill_leaf_crossings_percent": IntervalOf(ours),
		"fewest_leaf_crossings_percent":  IntervalOf(best),
		"rowmill_is_best_percent":        IntervalOf(equal),
	}, nil
}

// smallCase draws three leaves of one node each, and two to four services of two to six instances, which fill six to nine
// tenths of the cores.
func smallCase(source *rand.Rand) ([]placement.Node, []dataset.Lifetime) {
	nodes := clos(1, 3, share{kind{name: "small", cores: 16, memory: 64, disk: 64, gpus: 2}, 1})
	for {
		var jobs []dataset.Lifetime
		cores := int64(0)
		for service := range 2 + source.IntN(3) {
			for role, count := range [2]int{1 + source.IntN(4), 1 + source.IntN(2)} {
				in := placement.Instance{Service: fmt.Sprint("service-", service), Role: placement.Role(role)}
				in.Cores = 1000 * (2 + 2*source.Int64N(3))
				if in.Role == placement.RoleDense {
					in.Cores, in.GPUs = 2000, 1
				}
				for range count {
					in.Name = fmt.Sprint(len(jobs))
					jobs = append(jobs, dataset.Lifetime{Instance: in, Deleted: math.Inf(1)})
					cores += in.Cores
				}
			}
		}
		if len(jobs) <= 11 && cores >= 29_000 && cores <= 43_000 {
			return nodes, jobs
		}
	}
}

// mostTogether tries every placement and returns the most pairs below one leaf; each leaf has one node.
func mostTogether(nodes []placement.Node, jobs []dataset.Lifetime) int {
	free := emptyNodes(nodes)
	counts := make([]map[string]*[3]int, len(nodes))
	for i := range counts {
		counts[i] = map[string]*[3]int{}
	}
	best := -1
	var try func(job, same int)
	try = func(job, same int) {
		if job == len(jobs) {
			best = max(best, same)
			return
		}
		in := &jobs[job].Instance
		pod := podOf(in)
		for i := range free {
			if !free[i].Fits(&pod) {
				continue
			}
			grant := free[i].Take(&pod, free[i].TightestGPUs(&pod))
			if counts[i][in.Service] == nil {
				counts[i][in.Service] = new([3]int)
			}
			of := counts[i][in.Service]
			gained := of[placement.RoleDense]
			if in.Role == placement.RoleDense {
				gained = of[placement.RoleCPU]
			}
			of[in.Role]++
			try(job+1, same+gained)
			of[in.Role]--
			free[i].Give(&pod, grant)
		}
	}
	try(0, 0)
	return best
}
