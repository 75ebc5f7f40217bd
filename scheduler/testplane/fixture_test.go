package testplane

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bindLimit bounds how long pods may wait for a node that they fit.
const bindLimit = 2 * time.Minute

func startPlane(t *testing.T, gates, apis []string) *Plane {
	t.Helper()
	p, err := Start(Options{Folder: t.TempDir(), Gates: gates, APIs: apis})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// exampleConfiguration is the configuration of the examples with replacements. Unless one of them is about the election,
// there is none: one scheduler starts faster.
func exampleConfiguration(t *testing.T, replacements ...string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/scheduler/rowmill-scheduler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	replacements = append(replacements, "leaderElect: true", "leaderElect: false")
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(string(text), replacements[i]) {
			t.Fatalf("the configuration has no %q", replacements[i])
		}
	}
	return strings.NewReplacer(replacements...).Replace(string(text))
}

// onlyOurScore makes RowmillTopology the only plugin that scores.
const onlyOurScore = `    plugins:
      score:
        disabled: [{name: "*"}]
        enabled: [{name: RowmillTopology}]
`

func startScheduler(t *testing.T, p *Plane, name, configuration string) *Process {
	t.Helper()
	scheduler, err := p.StartScheduler(name, configuration)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := scheduler.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", name, tail(scheduler.Log))
		}
	})
	return scheduler
}

func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(len(lines)-30, 0):], "\n")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// checkRules fails for each rule that the API objects show broken.
func checkRules(t *testing.T, p *Plane, pods []v1.Pod) {
	t.Helper()
	nodes, err := p.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, broken := range Check(nodes.Items, pods) {
		t.Error(broken)
	}
}

// message waits for an event of a pod with all texts and returns its message.
func message(ctx context.Context, t *testing.T, p *Plane, pod string, texts ...string) string {
	t.Helper()
	found, last := "", ""
	err := Wait(ctx, "an event of pod "+pod, bindLimit, func() (bool, error) {
		events, err := p.Client.CoreV1().Events(Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return false, err
		}
		for i := range events.Items {
			last = events.Items[i].Message
			all := true
			for _, text := range texts {
				all = all && strings.Contains(last, text)
			}
			if all {
				found = last
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatalf("%v with %q; the last one: %s", err, texts, last)
	}
	return found
}

// waitForPod waits until a pod has a node, and returns it and the time since the call.
func waitForPod(ctx context.Context, t *testing.T, p *Plane, name string, limit time.Duration) (string, time.Duration) {
	t.Helper()
	start, node := time.Now(), ""
	must(t, Wait(ctx, "pod "+name+" is bound", limit, func() (bool, error) {
		pod, err := p.Client.CoreV1().Pods(Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		node = pod.Spec.NodeName
		return node != "", nil
	}))
	return node, time.Since(start)
}
