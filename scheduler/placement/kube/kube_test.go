package kube

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/fragment"
)

// A list as kubectl prints it: nodes with and without labels, GPUs of a device plugin and of resource slices in two
// generations, a partition held by a claim, sidecars, waiting and ended pods; and invalid lists, which must be refused.

func read(t *testing.T) *Snapshot {
	t.Helper()
	file, err := os.Open("testdata/cluster.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s, err := Read(file, DefaultLabels)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReadsWhatKubectlPrints(t *testing.T) {
	s := read(t)
	if len(s.Nodes) != 3 || len(s.Pods) != 5 {
		t.Fatalf("%d nodes, %d pods", len(s.Nodes), len(s.Pods))
	}
	gpu := s.Nodes[1]
	if gpu.Name != "gpu-0" || gpu.Zone != "a" || gpu.Spine != "s0" || gpu.Leaf != "l0" || gpu.Cores != 128_000 || gpu.Memory != 1<<20 || len(gpu.NICs) != 4 {
		t.Errorf("node: %+v", gpu)
	}
	if len(gpu.GPUs) != 2 || gpu.GPUs[0].ID != "gpu-0" || gpu.GPUs[0].NUMA != 0 || gpu.GPUs[1].NUMA != 1 || gpu.GPUs[1].Switch >= 0 {
		t.Errorf("GPUs: %+v", gpu.GPUs)
	}
	dense, err := s.Find("shop/dense-0")
	if err != nil || dense.Service != "home" || dense.Role != placement.RoleDense || dense.Density != 2 || dense.NIC != 25 || len(dense.gpus) != 1 || dense.gpus[0].share != 2 {
		t.Errorf("pod: %+v, %v", dense, err)
	}
	cpu, err := s.Find("shop/cpu-0")
	// 48 cores plus the sidecar and the overhead; the init container needs the most memory, together with the sidecar.
	if err != nil || cpu.Cores != 49_500 || cpu.Memory != 301<<10 {
		t.Errorf("pod: %+v, %v", cpu, err)
	}
	if _, err := s.Find("shop/none"); err == nil {
		t.Error("an unknown pod is no error")
	}
	for _, want := range []string{`node "cordoned" is cordoned`, "1 of 3 nodes lack the label network.topology.nvidia.com/spine"} {
		if !slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, want) }) {
			t.Errorf("no warning %q in %q", want, s.Warnings)
		}
	}
}

func TestFragmentsCountPartitions(t *testing.T) {
	nodes, pods := read(t).Fragments()
	if len(pods) != 5 {
		t.Errorf("%d pods", len(pods))
	}
	gpu, old := nodes[1], nodes[2]
	if gpu.GPUs[0] != 750 || gpu.GPUs[1] != fragment.Whole || gpu.Cores != 120_000 {
		t.Errorf("a quarter of GPU 0 is in use: %+v", gpu)
	}
	if old.FreeGPU() != 1000 || old.Cores != 12_000 {
		t.Errorf("one of two GPUs is in use: %+v", old)
	}
}

func TestClusterAnswersWhyAPodWaits(t *testing.T) {
	s := read(t)
	c, err := s.Cluster(placement.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fits, err := s.Find("shop/cpu-1")
	if err != nil {
		t.Fatal(err)
	}
	if a, err := c.Find(fits.Instance); err != nil || a.Node != "gpu-0" {
		t.Errorf("cpu-1: %+v, %v", a.Node, err)
	}
	waits, err := s.Find("shop/cpu-2")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Find(waits.Instance)
	rejection := new(placement.Rejection)
	if !errors.As(err, &rejection) || rejection.Turned[placement.RuleSpine] != 1 || rejection.Turned[placement.RuleCores] != 2 || rejection.Nearest.Node != "gpu-0" {
		t.Errorf("cpu-2: %v", err)
	}
}

func TestServiceInTwoSpinesAndOverfullNodesAreWarnings(t *testing.T) {
	pod := func(name, node, cores string) string {
		return fmt.Sprintf(`{"kind": "Pod", "metadata": {"name": %q, "namespace": "n", "labels": {"rowmill.io/service": "x"}},
			"spec": {"nodeName": %q, "containers": [{"resources": {"requests": {"cpu": %q}}}]}}`, name, node, cores)
	}
	node := func(name string) string {
		return fmt.Sprintf(`{"kind": "Node", "metadata": {"name": %q, "labels": {"spine": %q, "leaf": "l"}},
			"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}}`, name, name)
	}
	text := `{"kind": "List", "items": [` + strings.Join([]string{
		node("a"), node("b"), pod("1", "a", "1"), pod("2", "b", "1"), pod("3", "b", "64"), pod("4", "elsewhere", "1"),
	}, ",") + "]}"
	s, err := Read(strings.NewReader(text), Labels{Spine: "spine", Leaf: "leaf"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Cluster(placement.Options{})
	if err != nil || c.Len() != 2 {
		t.Fatalf("%d pods are bound, %v", c.Len(), err)
	}
	for _, want := range []string{"service x, group 0 runs below 2 spines already", `instance "n/3": node "b" has 3 cores free, needs 64`} {
		if !slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, want) }) {
			t.Errorf("no warning %q in %q", want, s.Warnings)
		}
	}
}

func TestBadListsAreRefused(t *testing.T) {
	item := func(text string) string { return `{"kind": "List", "items": [` + text + "]}" }
	node := func(allocatable string) string {
		return item(`{"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {` + allocatable + "}}}")
	}
	pod := func(more string) string {
		return item(`{"kind": "Pod", "metadata": {"name": "p", "namespace": "n"` + more + "}")
	}
	slice := func(devices string) string {
		return item(`{"kind": "ResourceSlice", "metadata": {"name": "r"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "n",
			"pool": {"name": "p"}, "devices": [` + devices + "]}}")
	}
	for _, one := range []struct{ name, text, says string }{
		{"no JSON", "NAME READY", "read the JSON list"},
		{"one object", `{"kind": "Node"}`, `must be of kind List, as kubectl get prints it, got "Node"`},
		{"no cores", node(`"memory": "1Gi"`), `node "n": status.allocatable has no cpu`},
		{"negative memory", node(`"cpu": "1", "memory": "-1Gi"`), `memory: quantity "-1Gi" is negative`},
		{"no quantity", node(`"cpu": "many", "memory": "1Gi"`), `cpu: quantity "many" is not a number`},
		{"bad request", pod(`}, "spec": {"containers": [{"resources": {"requests": {"cpu": "1x"}}}]}`), `pod "n/p": container 0: cpu: quantity "1x"`},
		{"bad init container", pod(`}, "spec": {"initContainers": [{"resources": {"requests": {"cpu": "-1"}}}]}`), "init container 0: cpu"},
		{"bad overhead", pod(`}, "spec": {"overhead": {"cpu": "NaN"}}`), "overhead: cpu"},
		{"unknown role", pod(`, "labels": {"rowmill.io/role": "gpu"}}, "spec": {}`), "label rowmill.io/role: role must be cpu, dense or whole"},
		{"bad density", pod(`, "annotations": {"rowmill.io/density": "-1"}}, "spec": {}`), `annotation rowmill.io/density must be a whole number >= 0, got "-1"`},
		{"device twice", slice(`{"name": "g"}, {"name": "g"}`), `device "g" of pool "p" is listed twice`},
		{"partition without a GPU", slice(`{"name": "m", "attributes": {"type": {"string": "mig"}}}`), "names no GPU"},
		{
			"unknown profile", slice(`{"name": "g", "attributes": {"uuid": {"string": "u"}}}, {"name": "m", "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": "u"}, "profile": {"string": "9g"}}}`),
			`unknown profile "9g"`,
		},
	} {
		if _, err := Read(strings.NewReader(one.text), DefaultLabels); err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: got %v, want an error with %q", one.name, err, one.says)
		}
	}
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]float64{
		"1": 1, "500m": 0.5, "1.5": 1.5, "2Ki": 2048, "1Gi": 1 << 30, "3k": 3000, "1e3": 1000, "1E": 1e18, "100n": 1e-7, "0": 0,
	} {
		if got, err := parseQuantity(text); err != nil || math.Abs(got-want) > 1e-12*want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	a, err := quantities{"cpu": "1100m", "memory": "1.1Gi", "nvidia.com/gpu": "2"}.amounts()
	if err != nil || a.cores != 1100 || a.memory != 1126 || a.gpus != 2 {
		t.Errorf("%+v, %v", a, err)
	}
}
