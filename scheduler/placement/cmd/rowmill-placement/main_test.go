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
		{[]string{"plan", "shop/cpu-1"}, []string{"1 more pods like shop/cpu-1 fit", "may hold 2 instances of the service, needs room for 3"}},
		{[]string{"plan", "-limit", "0", "shop/cpu-1"}, []string{"0 more pods like shop/cpu-1 fit"}},
		{[]string{"explain", "shop/cpu-1"}, []string{`shop/cpu-1 fits: node "gpu-0"`}},
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
		{nil, "usage"},
		{[]string{"fly"}, `unknown command "fly"`},
		{[]string{"study"}, "name at least one part"},
		{[]string{"study", "everything"}, "no file openb_node_list_gpu_node.csv"},
		{[]string{"study", "-data", "nowhere", "yardstick"}, "are published in alibaba/clusterdata"},
		{[]string{"fit", "-data", "nowhere"}, "no file"},
		{[]string{"generate"}, "name a folder with -out"},
		{[]string{"plan"}, "name one pod"},
		{[]string{"plan", "-limit", "many", "x"}, "invalid value"},
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
