package kube

import (
	"fmt"
	"slices"

	"rowmill.io/scheduler/placement"
)

const (
	gpuDriver = "gpu.nvidia.com"
	eighths   = 8
)

// gpuKey is a share of one GPU of a node, in eighths.
type gpuKey struct {
	node         string
	index, share int
}

// devices are the GPUs of resource slices.
type devices struct {
	byNode map[string][]gpuDevice
	// byName finds a device, or a partition of a device, by pool and name.
	byName map[[2]string]gpuKey
	claims map[string][]deviceResult
}

type gpuDevice struct {
	name, uuid, model string
	pcieRoot          string
}

func (d *device) text(names ...string) string {
	for _, name := range names {
		if value, ok := d.Attributes[name]; ok && value.String != "" {
			return value.String
		}
	}
	return ""
}

// readDevices reads slices and claims. Of a pool with slices of several generations, only the newest is used.
func readDevices(items []object) (*devices, error) {
	d := &devices{byNode: map[string][]gpuDevice{}, byName: map[[2]string]gpuKey{}, claims: map[string][]deviceResult{}}
	newest := map[string]int64{}
	for i := range items {
		if o := &items[i]; o.Kind == "ResourceSlice" {
			newest[o.Spec.Pool.Name] = max(newest[o.Spec.Pool.Name], o.Spec.Pool.Generation)
		}
	}
	current := func(o *object) bool {
		return o.Kind == "ResourceSlice" && o.Spec.Driver == gpuDriver && o.Spec.NodeName != "" &&
			o.Spec.Pool.Generation == newest[o.Spec.Pool.Name]
	}
	for i := range items {
		o := &items[i]
		if o.Kind == "ResourceClaim" {
			d.claims[o.Metadata.key()] = o.Status.Allocation.Devices.Results
		}
		if !current(o) {
			continue
		}
		for j := range o.Spec.Devices {
			one := &o.Spec.Devices[j]
			if kind := one.text("type"); kind != "" && kind != "gpu" {
				continue
			}
			key := [2]string{o.Spec.Pool.Name, one.Name}
			if _, twice := d.byName[key]; twice {
				return nil, fmt.Errorf("resource slice %q: device %q of pool %q is listed twice", o.Metadata.Name, one.Name, o.Spec.Pool.Name)
			}
			gpus := d.byNode[o.Spec.NodeName]
			d.byName[key] = gpuKey{o.Spec.NodeName, len(gpus), eighths}
			d.byNode[o.Spec.NodeName] = append(gpus, gpuDevice{
				name: one.Name, uuid: one.text("uuid"), model: one.text("productName"),
				pcieRoot: one.text("resource.kubernetes.io/pcieRoot", "pcieRoot"),
			})
		}
	}
	for i := range items {
		if o := &items[i]; current(o) {
			if err := d.readPartitions(o); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// readPartitions reads the MIG devices of a slice; each is a part of the GPU that it names as its parent.
func (d *devices) readPartitions(o *object) error {
	for j := range o.Spec.Devices {
		one := &o.Spec.Devices[j]
		if one.text("type") != "mig" {
			continue
		}
		gpus := d.byNode[o.Spec.NodeName]
		parent := slices.IndexFunc(gpus, func(g gpuDevice) bool { return g.uuid != "" && g.uuid == one.text("parentUUID") })
		if parent < 0 {
			return fmt.Errorf("resource slice %q: partition %q names no GPU of node %q as its parent", o.Metadata.Name, one.Name, o.Spec.NodeName)
		}
		size := placement.ProfileSlices(one.text("profile"))
		if size == 0 {
			return fmt.Errorf("resource slice %q: partition %q has the unknown profile %q", o.Metadata.Name, one.Name, one.text("profile"))
		}
		key := [2]string{o.Spec.Pool.Name, one.Name}
		if _, twice := d.byName[key]; twice {
			return fmt.Errorf("resource slice %q: device %q of pool %q is listed twice", o.Metadata.Name, one.Name, o.Spec.Pool.Name)
		}
		d.byName[key] = gpuKey{o.Spec.NodeName, parent, size}
	}
	return nil
}

// gpus returns the GPUs of a node; nil without slices. GPUs below one PCIe root complex share a NUMA node. Slices do not
// say which GPUs share a switch.
func (d *devices) gpus(node string) []placement.GPU {
	var roots []string
	var gpus []placement.GPU
	for _, one := range d.byNode[node] {
		at := placement.Anywhere
		if one.pcieRoot != "" {
			if at.NUMA = slices.Index(roots, one.pcieRoot); at.NUMA < 0 {
				at.NUMA = len(roots)
				roots = append(roots, one.pcieRoot)
			}
		}
		gpus = append(gpus, placement.GPU{Locality: at, ID: one.name, Model: one.model})
	}
	return gpus
}

// claimed returns the GPUs and partitions that the claims of a pod hold.
func (d *devices) claimed(o *object) []gpuKey {
	var held []gpuKey
	for _, claim := range o.Spec.ResourceClaims {
		name := claim.ResourceClaimName
		for _, made := range o.Status.ResourceClaimStatuses {
			if made.Name == claim.Name {
				name = made.ResourceClaimName
			}
		}
		for _, result := range d.claims[o.Metadata.Namespace+"/"+name] {
			if key, known := d.byName[[2]string{result.Pool, result.Device}]; known && result.Driver == gpuDriver {
				held = append(held, key)
			}
		}
	}
	return held
}
