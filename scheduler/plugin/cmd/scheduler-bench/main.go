// Command scheduler-bench measures how many pods per second kube-scheduler places, in one process, over the fake API of
// client-go: without the plugin, with it, and with stock pod affinity in its place. It prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"rowmill.io/scheduler/plugin"
)

// bindLimit bounds a run.
const bindLimit = 10 * time.Minute

// result is what the command prints.
type result struct {
	Variant string  `json:"variant"`
	Pods    int     `json:"pods"`
	Seconds float64 `json:"wall_s"`
	CPU     float64 `json:"cpu_s"`
	// Leaves is the mean number of leaves below which a service runs; Spines that of spines.
	Leaves float64 `json:"leaves_per_service"`
	Spines float64 `json:"spines_per_service"`
}

func main() {
	var size size
	variant := flag.String("variant", "plugin", "none, plugin or affinity")
	configuration := flag.String("config", "", "file with the configuration of the scheduler, for the variant plugin")
	flag.IntVar(&size.nodes, "nodes", 5000, "nodes")
	flag.IntVar(&size.bound, "bound", 18000, "pods that are bound before the run")
	flag.IntVar(&size.pods, "pods", 2000, "pods to place")
	flag.Parse()
	r, err := run(context.Background(), *variant, *configuration, size)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scheduler-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, variant, configuration string, size size) (*result, error) {
	switch {
	case !slices.Contains([]string{"none", "plugin", "affinity"}, variant):
		return nil, fmt.Errorf("-variant must be none, plugin or affinity, got %q", variant)
	case variant == "plugin" && configuration == "":
		return nil, fmt.Errorf("-variant plugin needs -config, for example examples/scheduler/rowmill-scheduler.yaml")
	case size.nodes < 1 || size.bound < 0 || size.pods < 1:
		return nil, fmt.Errorf("-nodes and -pods must be >= 1 and -bound >= 0, got %d, %d and %d", size.nodes, size.pods, size.bound)
	}
	ctx, cancel := context.WithTimeout(ctx, bindLimit)
	defer cancel()
	// Watches of the fake API panic if a reader falls behind by more than this.
	watch.DefaultChanSize = int32(2 * (size.bound + size.pods))
	cluster, err := newCluster(size, variant == "affinity")
	if err != nil {
		return nil, err
	}
	api := newAPI(cluster)
	config, err := latest.Default()
	if err != nil {
		return nil, err
	}
	if variant == "plugin" {
		if config, err = options.LoadConfigFromFile(klog.Background(), configuration); err != nil {
			return nil, err
		}
	}
	factory := scheduler.NewInformerFactory(api.client, 0)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: api.client.EventsV1()})
	s, err := scheduler.New(ctx, api.client, factory, nil,
		func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(scheme.Scheme, name) },
		scheduler.WithProfiles(config.Profiles...),
		scheduler.WithPercentageOfNodesToScore(config.PercentageOfNodesToScore),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{plugin.Name: plugin.NewFactory(legacyregistry.MustRegister)}),
	)
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		return nil, err
	}
	start, used := time.Now(), cpuSeconds()
	go s.Run(ctx)
	select {
	case <-api.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("%d of %d pods were bound within %v", api.count(), size.pods, bindLimit)
	}
	r := &result{Variant: variant, Pods: size.pods, Seconds: time.Since(start).Seconds(), CPU: cpuSeconds() - used}
	r.Leaves, r.Spines = cluster.spread(api.bindings())
	return r, nil
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
