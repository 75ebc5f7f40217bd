package placement

import (
	"fmt"
	"math/bits"
	"slices"
)

// host is a node with its resources in use.
type host struct {
	Node
	leaf *leaf
	free Resources
	// cores holds the free cores by CPU group, busy the used slices by GPU, nic the free percent by NIC.
	cores []int64
	busy  []slices8
	nic   []int
	// idle counts free whole GPUs, partible free slices of GPUs in MIG mode.
	idle, partible int
	// services lists the services with instances here; there are few, so a list is faster than a map.
	services []tenant
	// gpuByNIC and the like hold distances: of GPUs and CPU groups from each NIC, and of CPU groups from each GPU.
	gpuByNIC, cpuByNIC, cpuByGPU [][]Distance
}

// tenant is a service with instances on a host.
type tenant struct {
	service *service
	count   int
	// limits holds the density limits of its instances that have one, ascending.
	limits []int
}

func newHost(n Node, l *leaf) *host {
	if len(n.CPUs) == 0 {
		n.CPUs = []CPU{{Locality: Anywhere, Cores: n.Cores}}
	}
	h := &host{Node: n, leaf: l, free: n.Resources, busy: make([]slices8, len(n.GPUs))}
	for i := range n.CPUs {
		h.cores = append(h.cores, n.CPUs[i].Cores)
	}
	for range n.NICs {
		h.nic = append(h.nic, 100)
	}
	for i := range n.GPUs {
		if n.GPUs[i].MIG {
			h.partible += slicesPerGPU
		} else {
			h.idle++
		}
	}
	for i := range n.NICs {
		var gpus, cpus []Distance
		for j := range n.GPUs {
			gpus = append(gpus, n.NICs[i].Distance(n.GPUs[j].Locality))
		}
		for j := range n.CPUs {
			cpus = append(cpus, n.NICs[i].Distance(n.CPUs[j].Locality))
		}
		h.gpuByNIC, h.cpuByNIC = append(h.gpuByNIC, gpus), append(h.cpuByNIC, cpus)
	}
	for i := range n.GPUs {
		var cpus []Distance
		for j := range n.CPUs {
			cpus = append(cpus, n.GPUs[i].Distance(n.CPUs[j].Locality))
		}
		h.cpuByGPU = append(h.cpuByGPU, cpus)
	}
	return h
}

// unused returns the free resources in the form that a spine adds up.
func (h *host) unused() Demand {
	d := Demand{Resources: h.free, GPUs: h.idle, Slices: h.partible}
	for _, free := range h.nic {
		d.NIC += free
	}
	return d
}

// partitions returns how many more partitions of a profile fit on a GPU.
func (h *host) partitions(gpu int, profile string) int {
	if !h.GPUs[gpu].MIG {
		return 0
	}
	p, ok := profilesOf(h.GPUs[gpu].Model)[profile]
	if !ok {
		return 0
	}
	count, busy := 0, h.busy[gpu]
	for {
		start, ok := p.place(busy)
		if !ok {
			return count
		}
		busy |= p.mask(start)
		count++
	}
}

// takes returns how many of the requested GPUs or partitions one GPU can provide.
func (h *host) takes(gpu int, in *Instance) int {
	switch {
	case in.Profile != "":
		return h.partitions(gpu, in.Profile)
	case h.busy[gpu] == 0 && !h.GPUs[gpu].MIG:
		return 1
	default:
		return 0
	}
}

// available returns how many GPUs or partitions of the requested kind are free.
func (h *host) available(in *Instance) int {
	if in.Profile == "" {
		return h.idle
	}
	count := 0
	for gpu := range h.GPUs {
		count += h.partitions(gpu, in.Profile)
	}
	return count
}

// roomiestNIC returns the largest free percent of any NIC.
func (h *host) roomiestNIC() int {
	most := 0
	for _, free := range h.nic {
		most = max(most, free)
	}
	return most
}

// fits reports whether resources and devices suffice.
func (h *host) fits(in *Instance) bool {
	return h.free.holds(in.Resources) &&
		(in.GPUs == 0 || h.available(in) >= in.GPUs) &&
		(in.NIC == 0 || h.roomiestNIC() >= in.NIC)
}

// tenant returns the entry of a service, or nil.
func (h *host) tenant(s *service) *tenant {
	for i := range h.services {
		if h.services[i].service == s {
			return &h.services[i]
		}
	}
	return nil
}

// densityLimit returns how many instances of the service run here, and the most that may run if one more joins.
func (h *host) densityLimit(s *service, own int) (count, limit int) {
	limit = own
	if t := h.tenant(s); t != nil {
		count = t.count
		if len(t.limits) > 0 && (limit == 0 || t.limits[0] < limit) {
			limit = t.limits[0]
		}
	}
	return count, limit
}

// dense reports whether one more instance of the service would exceed the density limit.
func (h *host) dense(s *service, own int) bool {
	count, limit := h.densityLimit(s, own)
	return limit > 0 && count >= limit
}

// nearest returns the smallest distance at which devices for an instance that fits are free, and the NIC, or -1 for none.
func (h *host) nearest(in *Instance) (Distance, int) {
	if in.NIC == 0 {
		return SameSwitch, -1
	}
	best, index := Far+1, -1
	for nic, free := range h.nic {
		if free < in.NIC {
			continue
		}
		if d := h.reach(nic, in); d < best {
			best, index = d, nic
		}
		if best == SameSwitch {
			break
		}
	}
	return best, index
}

// reach returns the distance from a NIC within which the devices of an instance are free.
func (h *host) reach(nic int, in *Instance) Distance {
	var within [Far + 1]int64
	need := in.Cores
	if in.GPUs > 0 {
		need = int64(in.GPUs)
		for gpu, d := range h.gpuByNIC[nic] {
			within[d] += int64(h.takes(gpu, in))
		}
	} else {
		for cpu, d := range h.cpuByNIC[nic] {
			within[d] += h.cores[cpu]
		}
	}
	for d := SameSwitch; d < Far; d++ {
		if need -= within[d]; need <= 0 {
			return d
		}
	}
	return Far
}

// pickAny chooses devices for an instance that may not fit: those that are free, and the NIC with most left.
func (h *host) pickAny(in *Instance) Assignment {
	a := h.pick(in)
	if in.NIC > 0 && a.NICIndex < 0 {
		a.Distance = Far
		for nic, free := range h.nic {
			if a.NICIndex < 0 || free > h.nic[a.NICIndex] {
				a.NICIndex = nic
			}
		}
	}
	return a
}

// pick chooses devices for an instance that fits.
func (h *host) pick(in *Instance) Assignment {
	a := Assignment{Instance: *in, Node: h.Name}
	a.Distance, a.NICIndex = h.nearest(in)
	var near []Distance
	if a.NICIndex >= 0 {
		near = h.cpuByNIC[a.NICIndex]
	}
	if in.GPUs > 0 {
		a.GPUs = h.pickGPUs(in, a.NICIndex)
	}
	if len(a.GPUs) > 0 {
		near = h.cpuByGPU[a.GPUs[0].Index]
	}
	a.CPUs = h.pickCores(in.Cores, near)
	return a
}

// pickGPUs takes the GPUs nearest to a NIC, and the first of equally near ones.
func (h *host) pickGPUs(in *Instance, nic int) []GPUShare {
	shares := make([]GPUShare, 0, in.GPUs)
	for d := SameSwitch; d <= Far; d++ {
		for gpu := range h.GPUs {
			at := SameSwitch
			if nic >= 0 {
				at = h.gpuByNIC[nic][gpu]
			}
			if at != d {
				continue
			}
			busy := h.busy[gpu]
			for range min(h.takes(gpu, in), in.GPUs-len(shares)) {
				share := GPUShare{Index: gpu, Size: slicesPerGPU}
				if in.Profile != "" {
					p := profilesOf(h.GPUs[gpu].Model)[in.Profile]
					share.Size = p.size
					share.Start, _ = p.place(busy)
					busy |= p.mask(share.Start)
				}
				shares = append(shares, share)
			}
		}
	}
	return shares
}

// pickCores takes cores of the nearest groups first; near may be nil.
func (h *host) pickCores(cores int64, near []Distance) []CPUShare {
	var shares []CPUShare
	for d := SameSwitch; d <= Far && cores > 0; d++ {
		for cpu, free := range h.cores {
			at := SameSwitch
			if near != nil {
				at = near[cpu]
			}
			if at != d || free == 0 || cores == 0 {
				continue
			}
			share := CPUShare{Index: cpu, Cores: min(free, cores)}
			cores -= share.Cores
			shares = append(shares, share)
		}
	}
	return shares
}

// idleDevices checks that the devices of an assignment exist, add up to its request and are free.
func (h *host) idleDevices(a *Assignment) error {
	if !h.free.holds(a.Resources) {
		return fmt.Errorf("resources %+v exceed the free %+v", a.Resources, h.free)
	}
	var cores int64
	for _, share := range a.CPUs {
		if share.Index < 0 || share.Index >= len(h.cores) || share.Cores < 0 || h.cores[share.Index] < share.Cores {
			return fmt.Errorf("CPU group %d has no %d millicores free", share.Index, share.Cores)
		}
		cores += share.Cores
	}
	if cores != a.Cores || len(a.GPUs) != a.Instance.GPUs {
		return fmt.Errorf("devices do not add up to the request: %d millicores, %d GPUs", cores, len(a.GPUs))
	}
	for _, share := range a.GPUs {
		if share.Index < 0 || share.Index >= len(h.busy) || share.Start < 0 || share.Size < 1 ||
			share.Start+share.Size > slicesPerGPU || h.busy[share.Index]&share.mask() != 0 {
			return fmt.Errorf("GPU %d has no %d slices free from %d", share.Index, share.Size, share.Start)
		}
	}
	if a.NIC > 0 && (a.NICIndex < 0 || a.NICIndex >= len(h.nic) || h.nic[a.NICIndex] < a.NIC) {
		return fmt.Errorf("NIC %d has no %d %% free", a.NICIndex, a.NIC)
	}
	return nil
}

func (g GPUShare) mask() slices8 {
	return slices8((1<<g.Size - 1) << g.Start)
}

// hold marks the resources of an assignment as in use.
func (h *host) hold(a *Assignment, s *service) {
	h.free.subtract(a.Resources)
	for _, share := range a.CPUs {
		h.cores[share.Index] -= share.Cores
	}
	for _, share := range a.GPUs {
		h.busy[share.Index] |= share.mask()
	}
	h.count(a, -1)
	t := h.tenant(s)
	if t == nil {
		h.services = append(h.services, tenant{service: s})
		t = &h.services[len(h.services)-1]
	}
	t.count++
	if a.Density > 0 {
		at, _ := slices.BinarySearch(t.limits, a.Density)
		t.limits = slices.Insert(t.limits, at, a.Density)
	}
}

// unhold is the reverse of hold.
func (h *host) unhold(a *Assignment, s *service) {
	h.free.add(a.Resources)
	for _, share := range a.CPUs {
		h.cores[share.Index] += share.Cores
	}
	for _, share := range a.GPUs {
		h.busy[share.Index] &^= share.mask()
	}
	h.count(a, 1)
	t := h.tenant(s)
	t.count--
	if a.Density > 0 {
		at, _ := slices.BinarySearch(t.limits, a.Density)
		t.limits = slices.Delete(t.limits, at, at+1)
	}
	if t.count == 0 {
		h.services = slices.DeleteFunc(h.services, func(t tenant) bool { return t.service == s })
	}
}

// count updates the sums of free devices; sign is 1 for devices that become free.
func (h *host) count(a *Assignment, sign int) {
	for _, share := range a.GPUs {
		if h.GPUs[share.Index].MIG {
			h.partible += sign * bits.OnesCount8(uint8(share.mask()))
		} else {
			h.idle += sign
		}
	}
	if a.NICIndex >= 0 {
		h.nic[a.NICIndex] += sign * a.NIC
	}
}
