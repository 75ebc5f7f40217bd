package study

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
	"rowmill.io/scheduler/placement/fragment"
)

// podOf returns the request of an instance; it requests whole GPUs.
func podOf(in *placement.Instance) fragment.Pod {
	p := fragment.Pod{Cores: in.Cores, Memory: in.Memory, Disk: in.Disk, GPUs: in.GPUs, NIC: in.NIC}
	if p.GPUs > 0 {
		p.Share = fragment.Whole
	}
	return p
}

func podsOf(jobs []dataset.Lifetime) []fragment.Pod {
	pods := make([]fragment.Pod, len(jobs))
	for i := range jobs {
		pods[i] = podOf(&jobs[i].Instance)
	}
	return pods
}

// app is the instances of one service in the trace, by role.
type app struct {
	name string
	jobs [3][]*dataset.Lifetime
}

func appsOf(jobs []dataset.Lifetime) []app {
	index := map[string]int{}
	var apps []app
	for i := range jobs {
		job := &jobs[i]
		at, known := index[job.Service]
		if !known {
			at = len(apps)
			index[job.Service] = at
			apps = append(apps, app{name: job.Service})
		}
		apps[at].jobs[job.Role] = append(apps[at].jobs[job.Role], job)
	}
	return apps
}

// commonest returns the instance with the most frequent request; of equally frequent ones, the larger.
func commonest(jobs []*dataset.Lifetime) placement.Instance {
	counts := map[placement.Instance]int{}
	for _, job := range jobs {
		request := job.Instance
		request.Name = ""
		counts[request]++
	}
	var best placement.Instance
	most := 0
	for request, count := range counts {
		if count > most || count == most && cmp.Or(
			cmp.Compare(request.Cores, best.Cores), cmp.Compare(request.Memory, best.Memory),
			cmp.Compare(request.Disk, best.Disk), cmp.Compare(request.NIC, best.NIC),
			cmp.Compare(request.Density, best.Density),
		) > 0 {
			best, most = request, count
		}
	}
	return best
}

// Merge returns how many monoliths an app with these numbers of CPU and dense instances becomes.
type Merge func(cpu, dense int) int

// Larger returns the number of instances of the more frequent role.
func Larger(cpu, dense int) int { return max(cpu, dense) }

// monolith returns the request of an app before the split: its most common CPU request plus its most common dense
// request. It has no NIC share, because its halves communicate within the node.
func (a *app) monolith() placement.Instance {
	cpu, dense := commonest(a.jobs[placement.RoleCPU]), commonest(a.jobs[placement.RoleDense])
	return placement.Instance{
		Service: a.name, Role: placement.RoleWhole, GPUs: 1, Density: dense.Density,
		Resources: placement.Resources{
			Cores: cpu.Cores + dense.Cores, Memory: cpu.Memory + dense.Memory, Disk: cpu.Disk + dense.Disk,
		},
	}
}

// Whole converts the trace into monoliths. When an app needs one more, it is created; when it needs one less, the newest
// is deleted.
func Whole(jobs []dataset.Lifetime, merge Merge) []dataset.Lifetime {
	var whole []dataset.Lifetime
	for _, a := range appsOf(jobs) {
		type step struct {
			time float64
			role placement.Role
			by   int
		}
		var steps []step
		for role, all := range a.jobs {
			for _, job := range all {
				steps = append(steps, step{job.Created, placement.Role(role), 1}, step{job.Deleted, placement.Role(role), -1})
			}
		}
		slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.time, b.time) })
		one := a.monolith()
		var counts [3]int
		var alive []int
		for i := 0; i < len(steps); {
			now := steps[i].time
			for ; i < len(steps) && steps[i].time == now; i++ {
				counts[steps[i].role] += steps[i].by
			}
			if math.IsInf(now, 1) {
				break
			}
			target := merge(counts[placement.RoleCPU], counts[placement.RoleDense])
			for len(alive) < target {
				one.Name = fmt.Sprintf("%s-whole-%05d", a.name, len(whole))
				alive = append(alive, len(whole))
				whole = append(whole, dataset.Lifetime{Instance: one, Created: now, Scheduled: -1, Deleted: math.Inf(1)})
			}
			for len(alive) > target {
				whole[alive[len(alive)-1]].Deleted = now
				alive = alive[:len(alive)-1]
			}
		}
	}
	return whole
}

// expected returns the demand of each service at the time of its most requested cores; the owner of a service would set
// this as the limit of replicas.
func expected(jobs []dataset.Lifetime) map[string]placement.Demand {
	peaks := map[string]placement.Demand{}
	now := map[string]placement.Demand{}
	for _, e := range eventsOf(jobs, nil) {
		in := &jobs[e.job].Instance
		asked := now[in.Service].Plus(placement.DemandOf([]placement.Instance{*in}), e.step)
		now[in.Service] = asked
		if asked.Cores > peaks[in.Service].Cores {
			peaks[in.Service] = asked
		}
	}
	return peaks
}

// event is a creation (1) or a deletion (-1).
type event struct {
	time float64
	job  int
	step int
}

// eventsOf returns creations and deletions within the trace by time, deletions first. Creations at the same time are in
// the order of rank, or without rank in the order of the list.
func eventsOf(jobs []dataset.Lifetime, rank []int) []event {
	events := make([]event, 0, 2*len(jobs))
	for i := range jobs {
		events = append(events, event{jobs[i].Created, i, 1})
		if !math.IsInf(jobs[i].Deleted, 1) {
			events = append(events, event{jobs[i].Deleted, i, -1})
		}
	}
	order := func(job int) int {
		if rank == nil {
			return job
		}
		return rank[job]
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.step, b.step), cmp.Compare(order(a.job), order(b.job)))
	})
	return events
}
