package placement

import "fmt"

// Role is the half of a model that an instance runs.
type Role uint8

// Roles of instances.
const (
	// CPU instances look up rows and pool them.
	RoleCPU Role = iota
	// Dense instances run the dense layers on GPUs.
	RoleDense
	// Whole instances run both halves on one node.
	RoleWhole
)

func (r Role) String() string {
	return [...]string{"cpu", "dense", "whole"}[r]
}

// ParseRole reads what String writes.
func ParseRole(text string) (Role, error) {
	for role := RoleCPU; role <= RoleWhole; role++ {
		if role.String() == text {
			return role, nil
		}
	}
	return 0, fmt.Errorf("role must be cpu, dense or whole, got %q", text)
}

// Instance is one worker of a service.
type Instance struct {
	Name    string
	Service string
	// Group numbers the groups of a service, which run in different spines or zones.
	Group int
	Role  Role
	Resources
	// GPUs is the number of whole GPUs, or of partitions if Profile is set.
	GPUs int
	// Profile is a MIG profile, for example 2g.20gb.
	Profile string
	// NIC is the share of one NIC in percent; 0 requests none.
	NIC int
	// Density is the largest number of instances of the service on one node; 0 means no limit.
	Density int
}

func (in *Instance) validate() error {
	err := in.Resources.validate()
	switch {
	case in.Name == "":
		return fmt.Errorf("instance of service %q has no name", in.Service)
	case err != nil:
		return fmt.Errorf("instance %q: %w", in.Name, err)
	case in.Role > RoleWhole:
		return fmt.Errorf("instance %q: role %d is unknown", in.Name, in.Role)
	case in.GPUs < 0:
		return fmt.Errorf("instance %q: GPUs must be >= 0, got %d", in.Name, in.GPUs)
	case in.NIC < 0 || in.NIC > 100:
		return fmt.Errorf("instance %q: NIC share must be in [0, 100] percent, got %d", in.Name, in.NIC)
	case in.Density < 0:
		return fmt.Errorf("instance %q: density must be >= 0, got %d; 0 means no limit", in.Name, in.Density)
	case in.Group < 0:
		return fmt.Errorf("instance %q: group must be >= 0, got %d", in.Name, in.Group)
	case in.Profile != "" && ProfileSlices(in.Profile) == 0:
		return fmt.Errorf("instance %q: MIG profile %q is unknown", in.Name, in.Profile)
	case in.Profile != "" && in.GPUs == 0:
		return fmt.Errorf("instance %q: names MIG profile %q but asks for 0 GPUs", in.Name, in.Profile)
	}
	return nil
}

// Assignment is an instance on a node, with its devices.
type Assignment struct {
	Instance
	Node string
	// CPUs lists cores by CPU group of the node.
	CPUs []CPUShare
	// GPUs lists whole GPUs, or partitions with their positions.
	GPUs []GPUShare
	// NICIndex is the position of the NIC, or -1.
	NICIndex int
	// Distance is from the NIC to the farthest GPU; for a CPU instance, to its farthest cores.
	Distance Distance
}

// CPUShare is a number of cores of one CPU group of a node.
type CPUShare struct {
	Index int
	Cores int64
}

// GPUShare is a range of memory slices of one GPU; all eight make a whole GPU.
type GPUShare struct {
	Index, Start, Size int
}
