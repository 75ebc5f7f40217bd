package placement

import "fmt"

// Resources are amounts of the divisible resources of a node or an instance.
type Resources struct {
	// Cores counts thousandths of a processor core.
	Cores int64
	// Memory and Disk count MiB.
	Memory, Disk int64
}

func (r *Resources) add(other Resources) {
	r.Cores += other.Cores
	r.Memory += other.Memory
	r.Disk += other.Disk
}

func (r *Resources) subtract(other Resources) {
	r.Cores -= other.Cores
	r.Memory -= other.Memory
	r.Disk -= other.Disk
}

func (r Resources) holds(other Resources) bool {
	return r.Cores >= other.Cores && r.Memory >= other.Memory && r.Disk >= other.Disk
}

func (r Resources) validate() error {
	for _, field := range []struct {
		name  string
		value int64
	}{{"cores", r.Cores}, {"memory", r.Memory}, {"disk", r.Disk}} {
		if field.value < 0 {
			return fmt.Errorf("%s must be >= 0, got %d", field.name, field.value)
		}
	}
	return nil
}

// Demand adds up the requests of many instances, or the free resources of a spine.
type Demand struct {
	Resources
	GPUs int
	// Slices counts memory slices of GPUs in MIG mode; a GPU has eight.
	Slices int
	// NIC counts percent of one NIC.
	NIC int
}

// DemandOf adds up the requests of instances.
func DemandOf(instances []Instance) Demand {
	var sum Demand
	for i := range instances {
		in := &instances[i]
		sum.add(in.Resources)
		sum.NIC += in.NIC
		if in.Profile == "" {
			sum.GPUs += in.GPUs
		} else {
			sum.Slices += in.GPUs * ProfileSlices(in.Profile)
		}
	}
	return sum
}

// headroom returns the smallest ratio of free to requested amounts over the requested resources; infinite if there are
// none.
func (d Demand) headroom(asked Demand) float64 {
	ratio := unlimited
	for _, pair := range [...][2]int64{
		{d.Cores, asked.Cores},
		{d.Memory, asked.Memory},
		{d.Disk, asked.Disk},
		{int64(d.GPUs), int64(asked.GPUs)},
		{int64(d.Slices), int64(asked.Slices)},
		{int64(d.NIC), int64(asked.NIC)},
	} {
		if pair[1] > 0 {
			ratio = min(ratio, float64(pair[0])/float64(pair[1]))
		}
	}
	return ratio
}

const unlimited = 1e18

func (d *Demand) addDemand(other Demand) {
	d.add(other.Resources)
	d.GPUs += other.GPUs
	d.Slices += other.Slices
	d.NIC += other.NIC
}

func (d *Demand) subtractDemand(other Demand) {
	d.subtract(other.Resources)
	d.GPUs -= other.GPUs
	d.Slices -= other.Slices
	d.NIC -= other.NIC
}

// Plus returns the sum with another demand, or the difference if sign is -1.
func (d Demand) Plus(other Demand, sign int) Demand {
	if sign < 0 {
		d.subtractDemand(other)
	} else {
		d.addDemand(other)
	}
	return d
}

// Max returns the larger of two demands, each resource by itself.
func (d Demand) Max(other Demand) Demand {
	return d.Plus(other.Plus(d, -1).positive(), 1)
}

// Times returns a multiple, rounded down.
func (d Demand) Times(factor float64) Demand {
	scaled := func(value int64) int64 { return int64(float64(value) * factor) }
	return Demand{
		Resources: Resources{scaled(d.Cores), scaled(d.Memory), scaled(d.Disk)},
		GPUs:      int(scaled(int64(d.GPUs))), Slices: int(scaled(int64(d.Slices))), NIC: int(scaled(int64(d.NIC))),
	}
}

// positive replaces negative amounts by 0.
func (d Demand) positive() Demand {
	return Demand{
		Resources: Resources{max(d.Cores, 0), max(d.Memory, 0), max(d.Disk, 0)},
		GPUs:      max(d.GPUs, 0), Slices: max(d.Slices, 0), NIC: max(d.NIC, 0),
	}
}
