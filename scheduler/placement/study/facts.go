package study

import (
	"math"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
)

// Facts are numbers of the traces that check claims of the paper.
type Facts struct {
	// MonolithsAbove20 is the percentage of monoliths with more than 20 cores for their GPU; the next field is that of
	// nodes with several GPUs and fewer than 20 cores for each.
	MonolithsAbove20 float64 `json:"monoliths_above_20_cores_per_gpu_percent"`
	NodesBelow20     float64 `json:"multi_gpu_nodes_below_20_cores_per_gpu_percent"`
	// Percentages of instances within the bounds of figure 18.
	DenseBelow12Cores float64 `json:"dense_below_12_cores_percent"`
	DenseBelow24GiB   float64 `json:"dense_below_24_gib_percent"`
	CPUFrom48Cores    float64 `json:"cpu_from_48_cores_percent"`
	CPUAbove240GiB    float64 `json:"cpu_above_240_gib_percent"`
	// DailyWave is the largest (peak - valley) / peak of requested cores within one day, in percent; PeakToValley is the
	// largest peak / valley within a day.
	DailyWave    float64 `json:"daily_wave_percent"`
	PeakToValley float64 `json:"peak_to_valley"`
	// Stranded is the number of free GPUs on a node with 96 cores and 8 GPUs that is full of instances of 48 cores and 1 GPU.
	Stranded int `json:"stranded_gpus"`
}

// RunFacts computes the facts.
func RunFacts(data *Data) (Facts, error) {
	var f Facts
	percent := func(count, of int) float64 {
		if of == 0 {
			return 0
		}
		return 100 * float64(count) / float64(of)
	}
	whole := Whole(data.Trace, Larger)
	above := 0
	for i := range whole {
		if whole[i].Cores > 20_000 {
			above++
		}
	}
	f.MonolithsAbove20 = percent(above, len(whole))
	several, below := 0, 0
	for i := range data.Nodes {
		if gpus := len(data.Nodes[i].GPUs); gpus > 1 {
			several++
			if data.Nodes[i].Cores < int64(gpus)*20_000 {
				below++
			}
		}
	}
	f.NodesBelow20 = percent(below, several)
	var dense, dense12, dense24, cpu, cpu48, cpu240 int
	for i := range data.Trace {
		in := &data.Trace[i].Instance
		if in.Role == placement.RoleDense {
			dense++
			dense12 += one(in.Cores < 12_000)
			dense24 += one(in.Memory < 24<<10)
		} else {
			cpu++
			cpu48 += one(in.Cores >= 48_000)
			cpu240 += one(in.Memory > 240<<10)
		}
	}
	f.DenseBelow12Cores, f.DenseBelow24GiB = percent(dense12, dense), percent(dense24, dense)
	f.CPUFrom48Cores, f.CPUAbove240GiB = percent(cpu48, cpu), percent(cpu240, cpu)
	f.DailyWave, f.PeakToValley = dailyWave(data.Trace)
	stranded, err := strandedGPUs()
	f.Stranded = stranded
	return f, err
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// dailyWave uses the requested cores at every full hour of each day of the trace.
func dailyWave(jobs []dataset.Lifetime) (wave, ratio float64) {
	const hour = 3600
	ratio = 1
	cores, next, hours := 0.0, 0.0, 0
	peak, valley := 0.0, math.Inf(1)
	for _, e := range eventsOf(jobs, nil) {
		for ; next < e.time; next += hour {
			peak, valley = max(peak, cores), min(valley, cores)
			if hours++; hours%24 == 0 {
				if peak > 0 {
					wave, ratio = max(wave, 100*(peak-valley)/peak), max(ratio, peak/valley)
				}
				peak, valley = 0, math.Inf(1)
			}
		}
		cores += float64(e.step) * float64(jobs[e.job].Cores) / 1000
	}
	return wave, ratio
}

func strandedGPUs() (int, error) {
	k := kind{name: "train", cores: 96, memory: 768, disk: 1, gpus: 8}
	c, err := newCluster(clos(1, 1, share{k, 1}), placement.Options{})
	if err != nil {
		return 0, err
	}
	one := placement.Instance{Name: "a", Service: "a", Role: placement.RoleWhole, GPUs: 1, Resources: placement.Resources{Cores: 48_000}}
	fit, _, err := c.Plan([]placement.Instance{one}, k.gpus)
	return k.gpus - fit, err
}
