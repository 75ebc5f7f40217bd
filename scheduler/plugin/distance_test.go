package plugin

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Among the nodes of the best leaf, those are best where the claimed devices would be near each other. Devices are picked by
// the scheduler's own allocator, from slices and claims in client-go's fake API.

// at is a device with its position.
type at struct {
	name, root string
	numa       int64
}

// slice publishes the devices of a driver on a node.
func slice(node, driver string, devices ...at) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for _, device := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name: device.name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"resource.kubernetes.io/pcieRoot": {StringValue: &device.root}, "resource.kubernetes.io/numaNode": {IntValue: &device.numa},
			},
		})
	}
	return s
}

func class(driver string) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)},
		}}},
	}
}

// claim requests one device of each class.
func claim(name string, classes ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: "claim"}}
	for i, class := range classes {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourcev1.DeviceRequest{
			Name: fmt.Sprint("r", i), Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			},
		})
	}
	return c
}

func claiming(name string, claims ...string) *v1.Pod {
	p := pod(name, "x", "1", "0")
	for _, one := range claims {
		p = p.PodResourceClaims(v1.PodResourceClaim{Name: one, ResourceClaimName: &one})
	}
	return p.Obj()
}

const gpuDriver, nicDriver = "gpu.nvidia.com", "dra.net"

func TestNodesWithNearDevicesArePreferred(t *testing.T) {
	gpu := at{"d-0", "pci0000:00", 0}
	taken := claim("taken", nicDriver)
	taken.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r0", Driver: nicDriver, Pool: "taken", Device: "d-0"}},
	}}
	objects := []runtime.Object{
		class(gpuDriver), class(nicDriver), taken, claim("both", gpuDriver, nicDriver), claim("gpu", gpuDriver), claim("nic", nicDriver),
		slice("far", nicDriver, at{"d-0", "pci0000:80", 1}),
		slice("numa", nicDriver, at{"d-0", "pci0000:40", 0}),
		slice("root", nicDriver, at{"d-0", "pci0000:00", 0}),
		// The NIC below the root of the GPU is in use.
		slice("taken", nicDriver, at{"d-0", "pci0000:00", 0}, at{"d-1", "pci0000:40", 0}),
		slice("other", nicDriver, at{"d-0", "pci0000:00", 0}),
	}
	nodes := map[string]*v1.Node{"other": node("other", "s", "elsewhere", "8", "0")}
	for _, name := range []string{"far", "numa", "root", "taken"} {
		nodes[name] = node(name, "s", "l", "64", "0")
	}
	for name := range nodes {
		objects = append(objects, slice(name, gpuDriver, gpu))
	}
	f := newFixture(t, "", slices.Collect(maps.Values(nodes)), objects...)
	f.waitForDevices(2*len(nodes), 1, "taken", "both", "gpu", "nic")
	only := func(names ...string) {
		f.nodes = nil
		for _, name := range names {
			f.nodes = append(f.nodes, nodes[name])
		}
	}
	f.mustPrefer(claiming("a", "both"), "root")
	f.mustPrefer(claiming("b", "gpu", "nic"), "root")
	// One device is near itself. A pod whose claim is unknown is rejected by other plugins.
	f.mustPrefer(claiming("c", "gpu"), "far", "numa", "root", "taken")
	f.mustPrefer(claiming("d", "gpu", "none"), "far", "numa", "root", "taken")
	f.mustPrefer(claiming("e"), "far", "numa", "root", "taken")
	only("far", "numa", "taken")
	f.mustPrefer(claiming("f", "both"), "numa", "taken")
	// A better leaf with devices far apart is before another leaf with near ones.
	only("far", "other")
	f.mustPrefer(claiming("g", "both"), "far")
}

func TestPositionsOfDevices(t *testing.T) {
	nodes := []*v1.Node{node("n", "s", "l", "4", "0")}
	published := slice("n", gpuDriver, at{"d-0", "pci0000:00", 1}, at{"d-1", "pci0000:00", 2}, at{"d-2", "", 0})
	// With the gate of lists, the first NUMA node is the one of the device.
	published.Spec.Devices[1].Attributes["resource.kubernetes.io/numaNode"] = resourcev1.DeviceAttribute{IntValues: []int64{3, 2}}
	published.Spec.Devices[2].Attributes = nil
	shared := slice("n", nicDriver, at{"d-0", "pci0000:00", 0})
	shared.Spec.NodeName = nil
	got := positionsOf([]*resourcev1.ResourceSlice{published, shared, slice("m", gpuDriver, at{"d-0", "pci0000:00", 0})}, nodes)
	want := map[structured.DeviceID]position{
		structured.MakeDeviceID(gpuDriver, "n", "d-0"): {"pci0000:00", "1"},
		structured.MakeDeviceID(gpuDriver, "n", "d-1"): {"pci0000:00", "3"},
		structured.MakeDeviceID(gpuDriver, "n", "d-2"): {},
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRequestedDevicesAreCounted(t *testing.T) {
	all := claim("all", "gpu")
	all.Spec.Devices.Requests[0].Exactly.AllocationMode = resourcev1.DeviceAllocationModeAll
	first := claim("first", "gpu")
	first.Spec.Devices.Requests[0].Exactly = nil
	four := claim("four", "gpu")
	four.Spec.Devices.Requests[0].Exactly.Count = 4
	for want, claims := range map[int][]*resourcev1.ResourceClaim{1: {claim("one", "gpu")}, 2: {all}, 3: {first, all}, 5: {four, first}} {
		if got := requestedDevices(claims); got != want {
			t.Errorf("%d devices, want %d", got, want)
		}
	}
	if newDeviceDistances(nil) != nil {
		t.Error("without Dynamic Resource Allocation no devices are picked")
	}
}

// waitForDevices waits until the scheduler knows published devices on as many slices, the claims, and the devices in use: each
// of the three follows events with a queue of its own.
func (f *fixture) waitForDevices(slices, inUse int, claims ...string) {
	f.Helper()
	known := func() error {
		published, err := f.devices.ResourceSlices().ListWithDeviceTaintRules()
		if err != nil {
			return err
		}
		for _, name := range claims {
			if _, err := f.devices.ResourceClaims().Get("n", name); err != nil {
				return err
			}
		}
		state, err := f.devices.ResourceClaims().GatherAllocatedState()
		if err != nil {
			return err
		}
		if len(published) != slices || len(state.AllocatedDevices) != inUse {
			return fmt.Errorf("%d slices, want %d; %d devices in use, want %d", len(published), slices, len(state.AllocatedDevices), inUse)
		}
		return nil
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := known()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			f.Fatal(err)
		}
	}
}
