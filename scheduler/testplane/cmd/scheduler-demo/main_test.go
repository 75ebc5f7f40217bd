package main

import (
	"strings"
	"testing"
)

func TestDemoExplainsEachChoice(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out, "../../../../examples/scheduler/rowmill-scheduler.yaml"); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if first := strings.Count(text, "first pod: "); first != 2 || !strings.Contains(text, "pods of the service") || !strings.Contains(text, "by rule spine") {
		t.Errorf("two services have a first pod, and a pod waits:\n%s", text)
	}
}
