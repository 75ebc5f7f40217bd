package testplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// GPUDriver is the name of NVIDIA's driver for Dynamic Resource Allocation.
const GPUDriver = "gpu.nvidia.com"

// gpusPerNode is the number of GPUs of an A100 node; slicesPerGPU that of their memory slices.
const gpusPerNode, slicesPerGPU = 8, 8

// devicesPerSlice is the largest number of partitions that one ResourceSlice may list.
const devicesPerSlice = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures

// migProfile is a way to cut an A100 with 80 GB.
type migProfile struct {
	name   string
	size   int
	starts []int
}

// migProfiles are those of Table 3 and their rivals for memory slices.
var migProfiles = []migProfile{
	{"1g.10gb", 1, []int{0, 1, 2, 3, 4, 5, 6}},
	{"2g.20gb", 2, []int{0, 2, 4}},
	{"3g.40gb", 4, []int{0, 4}},
	{"7g.80gb", 8, []int{0}},
}

// PublishPartitions publishes the GPUs of a node as partitionable devices, in the form of NVIDIA's driver: one counter set
// per GPU with a counter per memory slice, and every partition at every position as a device that consumes counters.
func PublishPartitions(ctx context.Context, client kubernetes.Interface, node string) error {
	var counters []resourcev1.CounterSet
	var devices []resourcev1.Device
	for gpu := range gpusPerNode {
		set := fmt.Sprintf("gpu-%d-counter-set", gpu)
		counters = append(counters, resourcev1.CounterSet{Name: set, Counters: memorySlices(0, slicesPerGPU)})
		uuid := fmt.Sprintf("GPU-%s-%d", node, gpu)
		attributes := map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"type": text("gpu"), "uuid": text(uuid), "productName": text("NVIDIA A100-SXM4-80GB"),
			"resource.kubernetes.io/pcieRoot": text(fmt.Sprintf("pci0000:%02d", gpu/2)),
		}
		devices = append(devices, partition(fmt.Sprintf("gpu-%d", gpu), set, 0, slicesPerGPU, attributes))
		for _, profile := range migProfiles {
			for _, start := range profile.starts {
				name := fmt.Sprintf("gpu-%d-mig-%s-%d", gpu, strings.ReplaceAll(profile.name, ".", ""), start)
				devices = append(devices, partition(name, set, start, profile.size, map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
					"type": text("mig"), "profile": text(profile.name), "parentUUID": text(uuid),
				}))
			}
		}
	}
	// Counters are in a slice of their own.
	specs := []resourcev1.ResourceSliceSpec{{SharedCounters: counters}}
	for start := 0; start < len(devices); start += devicesPerSlice {
		specs = append(specs, resourcev1.ResourceSliceSpec{Devices: devices[start:min(start+devicesPerSlice, len(devices))]})
	}
	for i := range specs {
		specs[i].Driver, specs[i].NodeName = GPUDriver, &node
		specs[i].Pool = resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(specs))}
		_, err := client.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)}, Spec: specs[i],
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("publish slice %d of node %s: %w", i, node, err)
		}
	}
	return nil
}

func text(value string) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{StringValue: &value}
}

func memorySlices(start, size int) map[string]resourcev1.Counter {
	counters := map[string]resourcev1.Counter{}
	for i := start; i < start+size; i++ {
		counters[fmt.Sprintf("memory-slice-%d", i)] = resourcev1.Counter{Value: resource.MustParse("1")}
	}
	return counters
}

func partition(name, set string, start, size int, attributes map[resourcev1.QualifiedName]resourcev1.DeviceAttribute) resourcev1.Device {
	return resourcev1.Device{
		Name: name, Attributes: attributes,
		ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: memorySlices(start, size)}},
	}
}

// CreateMIGClass creates a device class of the driver's partitions, and a template of claims for one of a profile.
func CreateMIGClass(ctx context.Context, client kubernetes.Interface, template, profile string) error {
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "mig.nvidia.com"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf("device.driver == %q && device.attributes[%q].type == 'mig'", GPUDriver, GPUDriver),
		}}}},
	}
	if _, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	claims := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: template, Namespace: Namespace},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "mig", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: class.Name,
				Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes[%q].profile == %q", GPUDriver, profile),
				}}},
			}}},
		}}},
	}
	_, err := client.ResourceV1().ResourceClaimTemplates(Namespace).Create(ctx, claims, metav1.CreateOptions{})
	return err
}

// NICDriver is the name of a driver for Dynamic Resource Allocation that publishes NICs.
const NICDriver = "dra.net"

// PublishDevices publishes devices of one driver on a node, by name and PCIe root.
func PublishDevices(ctx context.Context, client kubernetes.Interface, node, driver string, rootOf map[string]string) error {
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for _, name := range slices.Sorted(maps.Keys(rootOf)) {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"resource.kubernetes.io/pcieRoot": text(rootOf[name])},
		})
	}
	_, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// CreateDriverClasses creates a device class for each driver, and a template of claims for one device of each.
func CreateDriverClasses(ctx context.Context, client kubernetes.Interface, template string, drivers ...string) error {
	claims := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: template, Namespace: Namespace}}
	for i, driver := range drivers {
		class := &resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
				Expression: fmt.Sprintf("device.driver == %q", driver),
			}}}},
		}
		if _, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
		claims.Spec.Spec.Devices.Requests = append(claims.Spec.Spec.Devices.Requests, resourcev1.DeviceRequest{
			Name: fmt.Sprint("device-", i), Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class.Name},
		})
	}
	_, err := client.ResourceV1().ResourceClaimTemplates(Namespace).Create(ctx, claims, metav1.CreateOptions{})
	return err
}

// Claim makes a pod claim a device by a template.
func Claim(pod *v1.Pod, template string) *v1.Pod {
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	pod.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
	return pod
}
