package plugin

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/utils/ptr"
)

// Nodes of the best leaf are ranked by the distance between the devices that a pod claims, for example between a GPU and a
// NIC. The plugin DynamicResources picks the devices of each node in its Filter and keeps them in data of its own, so the
// plugin here asks the same allocator again, with the same claims and slices. The allocation itself stays the one of
// DynamicResources.

// Devices below one PCIe root are on one hierarchy of PCIe switches. Kubernetes documents both attributes; its v1.36 has no
// constant for the NUMA node yet.
const (
	rootAttribute = deviceattribute.StandardDeviceAttributePCIeRoot
	numaAttribute = deviceattribute.StandardDeviceAttributePrefix + "numaNode"
)

const (
	// triedMost bounds the nodes for which devices are picked in one cycle; a leaf has tens of nodes.
	triedMost = 64
	// distanceMost bounds the distances that a score tells apart.
	distanceMost = 15
	// gatherMost bounds the attempts to read the allocated devices while another cycle changes them.
	gatherMost = 5
)

// position is the PCIe root and the NUMA node of a device; an empty text is unknown.
type position struct{ root, numa string }

// deviceDistances predicts which devices pods get.
type deviceDistances struct {
	manager  fwk.SharedDRAManager
	features structured.Features
	compiled *cel.Cache
}

// newDeviceDistances returns nil if the scheduler runs without Dynamic Resource Allocation.
func newDeviceDistances(manager fwk.SharedDRAManager) *deviceDistances {
	if manager == nil {
		return nil
	}
	enabled := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	return &deviceDistances{
		manager: manager, features: dynamicresources.AllocatorFeatures(enabled),
		compiled: cel.NewCache(10, cel.Features{
			EnableConsumableCapacity: enabled.EnableDRAConsumableCapacity, EnableListTypeAttributes: enabled.EnableDRAListTypeAttributes,
		}),
	}
}

// byNode returns the distance between the devices that a pod would get on each node: 0 below one PCIe root, and 1 more for
// each further root and for each further NUMA node. Nodes that were not tried, or where the claims do not fit, come last. The
// result is nil if the pod claims fewer than two devices.
func (d *deviceDistances) byNode(ctx context.Context, pod *v1.Pod, nodes []*v1.Node) (map[string]int, error) {
	if len(nodes) < 2 {
		return nil, nil
	}
	claims, held, err := d.claimsOf(pod)
	if err != nil || len(claims) == 0 || requestedDevices(claims)+len(held) < 2 {
		return nil, err
	}
	allocated, err := d.allocated()
	if err != nil {
		return nil, err
	}
	slices, err := d.manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	allocator, err := structured.NewAllocator(ctx, d.features, *allocated, d.manager.DeviceClasses(), slices, d.compiled)
	if err != nil {
		return nil, err
	}
	distances := map[string]int{}
	for _, node := range nodes {
		distances[node.Name] = distanceMost
	}
	nodes = nodes[:min(len(nodes), triedMost)]
	positions := positionsOf(slices, nodes)
	for _, node := range nodes {
		results, err := allocator.Allocate(ctx, node, claims)
		if errors.Is(err, structured.ErrFailedAllocationOnNode) || err == nil && len(results) < len(claims) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("pick devices of node %q: %w", node.Name, err)
		}
		devices := held
		for i := range results {
			devices = append(devices[:len(devices):len(devices)], results[i].Devices.Results...)
		}
		roots, numas := sets.New[string](), sets.New[string]()
		for i := range devices {
			one := &devices[i]
			at := positions[structured.MakeDeviceID(one.Driver, one.Pool, one.Device)]
			roots.Insert(at.root)
			numas.Insert(at.numa)
		}
		apart := max(roots.Delete("").Len()-1, 0) + max(numas.Delete("").Len()-1, 0)
		distances[node.Name] = min(apart, distanceMost)
	}
	return distances, nil
}

// claimsOf returns the claims of a pod that have no devices yet, and the devices of the others.
func (d *deviceDistances) claimsOf(pod *v1.Pod) (claims []*resourcev1.ResourceClaim, held []resourcev1.DeviceRequestAllocationResult, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, nil, err
		}
		if name == nil {
			continue
		}
		claim, err := d.manager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return nil, nil, err
		}
		if claim.Status.Allocation == nil {
			claims = append(claims, claim)
		} else {
			held = append(held, claim.Status.Allocation.Devices.Results...)
		}
	}
	return claims, held, nil
}

// requestedDevices counts the devices that claims request; a request for all devices counts as two.
func requestedDevices(claims []*resourcev1.ResourceClaim) int {
	count := 0
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			switch exactly := claim.Spec.Devices.Requests[i].Exactly; {
			case exactly == nil:
				count++
			case exactly.AllocationMode == resourcev1.DeviceAllocationModeAll:
				count += 2
			default:
				count += max(int(exactly.Count), 1)
			}
		}
	}
	return count
}

// allocated returns the devices in use. Reading them fails if claims change at the same time, so it is tried again.
func (d *deviceDistances) allocated() (*structured.AllocatedState, error) {
	var failed error
	for range gatherMost {
		state, err := d.manager.ResourceClaims().GatherAllocatedState()
		if err == nil && state == nil {
			err = errors.New("the scheduler knows no state of claims")
		}
		if err == nil {
			return state, nil
		}
		failed = err
	}
	return nil, fmt.Errorf("read the devices in use: %w", failed)
}

// positionsOf returns the positions of the devices of some nodes.
func positionsOf(slices []*resourcev1.ResourceSlice, nodes []*v1.Node) map[structured.DeviceID]position {
	names := sets.New[string]()
	for _, node := range nodes {
		names.Insert(node.Name)
	}
	positions := map[structured.DeviceID]position{}
	for _, slice := range slices {
		if slice.Spec.NodeName == nil || !names.Has(*slice.Spec.NodeName) {
			continue
		}
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			at := position{root: ptr.Deref(device.Attributes[rootAttribute].StringValue, "")}
			// A list begins with the NUMA node of the device; nodes that are as near follow.
			switch numa := device.Attributes[numaAttribute]; {
			case numa.IntValue != nil:
				at.numa = fmt.Sprint(*numa.IntValue)
			case len(numa.IntValues) > 0:
				at.numa = fmt.Sprint(numa.IntValues[0])
			}
			positions[structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, device.Name)] = at
		}
	}
	return positions
}
