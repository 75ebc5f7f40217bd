package dataset

import (
	"fmt"
	"io"
	"math"

	"rowmill.io/scheduler/placement"
)

// Lifetime is an instance of the 2025 trace with its times in seconds. Created is 0 if it ran before the trace began,
// Deleted is infinite if it ran beyond the end, and Scheduled is negative if unknown.
type Lifetime struct {
	placement.Instance
	Created, Scheduled, Deleted float64
}

const gib = 1024

// ReadTrace reads the 2025 trace of disaggregated serving. NIC shares above 100 percent and densities below -1 are errors.
func ReadTrace(name string, r io.Reader) ([]Lifetime, error) {
	var all []Lifetime
	seen := map[string]bool{}
	columns := []string{
		"instance_sn", "role", "app_name", "cpu_request", "gpu_request", "rdma_request", "memory_request", "disk_request",
		"max_instance_per_node", "creation_time", "scheduled_time", "deletion_time",
	}
	err := readTable(name, r, columns, func(row *row) error {
		one := Lifetime{
			Instance: placement.Instance{
				Name: row.text("instance_sn"), Service: row.text("app_name"),
				Resources: placement.Resources{
					Cores: int64(math.Round(row.number("cpu_request") * 1000)), Memory: int64(row.number("memory_request") * gib),
					Disk: int64(row.number("disk_request") * gib),
				},
				GPUs: row.count("gpu_request"),
				NIC:  row.count("rdma_request"),
			},
			Created:   row.time("creation_time", 0),
			Scheduled: row.time("scheduled_time", -1),
			Deleted:   row.time("deletion_time", math.Inf(1)),
		}
		if text := row.text("max_instance_per_node"); text != "-1" {
			one.Density = row.count("max_instance_per_node")
		}
		if one.NIC > 100 {
			row.fail("rdma_request", "must be in [0, 100]")
		}
		switch row.text("role") {
		case "CN":
			one.Role = placement.RoleCPU
		case "HN":
			one.Role = placement.RoleDense
		default:
			row.fail("role", "must be CN or HN")
		}
		switch {
		case row.err != nil:
			return nil
		case seen[one.Name]:
			return fmt.Errorf("instance %q is listed twice", one.Name)
		case one.Deleted < one.Created:
			return fmt.Errorf("instance %q is deleted at %g, before its creation at %g", one.Name, one.Deleted, one.Created)
		}
		seen[one.Name] = true
		all = append(all, one)
		return nil
	})
	return all, err
}
