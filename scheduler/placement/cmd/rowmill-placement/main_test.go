package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Tests of the command with its arguments, and the list of a cluster on standard input.

func output(t *testing.T, input string, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(arguments, strings.NewReader(input), &out)
	return out.String(), err
}

func cluster(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../kube/testdata/cluster.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCommandsThatReadACluster(t *testing.T) {
	for _, one := range []struct {
		arguments []string
		says      []string
	}{
		{[]string{"fragments"}, []string{"3 nodes, 5 pods in 5 classes of requests, 2 of them with GPUs", "GPUs: 2.75 free"}},
		{[]string{"plan", "shop/cpu-1"}, []string{"1 more pod like shop/cpu-1 fits", "may run 2 pods of the service at most, would run 3"}},
		{[]string{"plan", "-limit", "0", "shop/cpu-1"}, []string{"0 more pods like shop/cpu-1 fit"}},
		{[]string{"explain", "shop/cpu-1"}, []string{`shop/cpu-1 fits on node "gpu-0"; its devices and NIC are on: other NUMA nodes, or unknown positions`}},
		{[]string{"explain", "shop/cpu-2"}, []string{"shop/cpu-2 waits: no node takes", `node "gpu-0" has 120 cores free, needs 120.5`}},
		{[]string{"explain", "lab/train"}, []string{`runs on node "old"`}},
	} {
		got, err := output(t, cluster(t), one.arguments...)
		if err != nil {
			t.Errorf("%v: %v", one.arguments, err)
		}
		for _, want := range one.says {
			if !strings.Contains(got, want) {
				t.Errorf("%v: no %q in:\n%s", one.arguments, want, got)
			}
		}
	}
}

func TestStudyWritesOneObjectAndPictures(t *testing.T) {
	folder := t.TempDir()
	if _, err := output(t, "", "generate", "-out", folder); err != nil {
		t.Fatal(err)
	}
	if _, err := output(t, "", "generate", "-out", folder); err == nil {
		t.Error("generate overwrote files")
	}
	pictures := filepath.Join(folder, "pictures")
	got, err := output(t, "", "study", "-seeds", "1", "-data", folder, "-pictures", pictures, "facts", "yardstick", "promotion")
	if err != nil {
		t.Fatal(err)
	}
	var result map[string]json.RawMessage
	if err := json.Unmarshal([]byte(got), &result); err != nil || len(result) != 4 {
		t.Errorf("%d parts, %v", len(result), err)
	}
	if _, err := os.Stat(filepath.Join(pictures, "yardstick_fragments.svg")); err != nil {
		t.Error(err)
	}
}

func TestBadCommandsAreRefused(t *testing.T) {
	for _, one := range []struct {
		arguments []string
		says      string
	}{
		{nil, "name a command"},
		{[]string{"fly"}, `unknown command "fly"; rowmill-placement -h lists the commands`},
		{[]string{"study"}, "name at least one part"},
		{[]string{"study", "everything"}, `unknown part "everything"; use facts yardstick`},
		{[]string{"study", "facts"}, `folder "." has no file `},
		{[]string{"study", "-data", "nowhere", "yardstick"}, "are published in alibaba/clusterdata"},
		{[]string{"fit", "-data", "nowhere"}, `folder "nowhere" has no file`},
		{[]string{"generate"}, "name a folder with -out"},
		{[]string{"plan"}, "name one pod as namespace/name, after the flags; got 0 names"},
		{[]string{"plan", "-limit", "many", "x"}, `plan: invalid value "many" for flag -limit: parse error; rowmill-placement plan -h lists the flags`},
		{[]string{"explain", "shop/none"}, `pod "shop/none" is not in the list`},
		{[]string{"explain", "-uplink-nics", "-1", "shop/cpu-1"}, "UplinkNICs must be >= 0"},
	} {
		if _, err := output(t, cluster(t), one.arguments...); err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%v: got %v, want an error with %q", one.arguments, err, one.says)
		}
	}
	if _, err := output(t, `{"kind": "List"}`, "fragments"); err == nil || !strings.Contains(err.Error(), "no pods") {
		t.Errorf("no pods: %v", err)
	}
}

func TestHelpIsPrinted(t *testing.T) {
	for _, one := range []struct {
		arguments []string
		says      []string
	}{
		{[]string{"-h"}, []string{"usage: rowmill-placement COMMAND", "kubectl get nodes,pods", "fragments  ", "study  "}},
		{[]string{"help"}, []string{"usage: rowmill-placement COMMAND"}},
		{[]string{"plan", "-h"}, []string{"usage: rowmill-placement plan [flags] NAMESPACE/POD\n\nCounts how many more pods", "-uplink-nics"}},
		{[]string{"explain", "--help"}, []string{"usage: rowmill-placement explain [flags] NAMESPACE/POD"}},
		{[]string{"fragments", "-h"}, []string{"usage: rowmill-placement fragments [flags]\n", "-leaf-label"}},
		{[]string{"study", "-h"}, []string{"usage: rowmill-placement study [flags] PART...", "-quick"}},
		{[]string{"fit", "-h"}, []string{"-rounds"}},
		{[]string{"generate", "-h"}, []string{"-out"}},
	} {
		got, err := output(t, "", one.arguments...)
		for _, want := range one.says {
			if err != nil || !strings.Contains(got, want) {
				t.Errorf("%v: %v, no %q in:\n%s", one.arguments, err, want, got)
			}
		}
	}
}

// A terminal is a character device, as /dev/null is.
func TestTerminalAsInputIsRefused(t *testing.T) {
	terminal, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	for _, arguments := range [][]string{{"fragments"}, {"plan", "shop/cpu-1"}, {"explain", "shop/cpu-1"}} {
		var out bytes.Buffer
		if err := run(arguments, terminal, &out); err == nil || !strings.Contains(err.Error(), arguments[0]+" reads the cluster from standard input: kubectl get nodes") {
			t.Errorf("%v: %v", arguments, err)
		}
	}
}
