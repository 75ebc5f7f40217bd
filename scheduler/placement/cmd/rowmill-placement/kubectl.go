package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/fragment"
	"rowmill.io/scheduler/placement/kube"
)

// snapshotFlags adds the flags with label keys to a command that reads a cluster.
func snapshotFlags(set *flag.FlagSet) *kube.Labels {
	labels := kube.DefaultLabels
	set.StringVar(&labels.Zone, "zone-label", labels.Zone, "label of the zone of a node")
	set.StringVar(&labels.Spine, "spine-label", labels.Spine, "label of the spine switch of a node")
	set.StringVar(&labels.Leaf, "leaf-label", labels.Leaf, "label of the leaf switch of a node")
	return &labels
}

func printWarnings(out io.Writer, s *kube.Snapshot) {
	for _, warning := range s.Warnings {
		fmt.Fprintln(out, "warning:", warning)
	}
}

func runFragments(arguments []string, in io.Reader, out io.Writer) error {
	set := flags("fragments", "", `Counts free cores and GPUs that cannot be used. Pods with equal requests form a class. If a class does not fit a
node, what is free there is a fragment for this class; the result is the average over classes, by number of pods.
GPUs count for classes that request GPUs, cores for all classes.`)
	labels := snapshotFlags(set)
	if err := parse(set, arguments, out); err != nil {
		return err
	}
	s, err := read(set, in, *labels)
	if err != nil {
		return err
	}
	printWarnings(out, s)
	nodes, pods := s.Fragments()
	if len(pods) == 0 {
		return fmt.Errorf("fragments: the list has no pods, and fragments are measured by the requests of pods: print pods too")
	}
	classes := fragment.Classes(pods, 1)
	asking := fragment.AskingGPU(classes)
	totals := fragment.Measure(nodes, asking, classes)
	fmt.Fprintf(out, "%d nodes, %d pods in %d classes of requests, %d of them with GPUs\n", len(nodes), len(pods), len(classes), len(asking))
	fmt.Fprintf(out, "cores: %.1f free, %.1f in fragments, %.1f on nodes where no class fits\n", totals.FreeCores, totals.FragmentCores, totals.NoneCores)
	if len(asking) == 0 {
		fmt.Fprintf(out, "GPUs: %.2f free; no pod requests a GPU\n", totals.FreeGPUs)
		return nil
	}
	fmt.Fprintf(out, "GPUs: %.2f free, %.2f in fragments, %.2f on nodes where no class with GPUs fits\n", totals.FreeGPUs, totals.FragmentGPUs, totals.NoneGPUs)
	for i := range nodes {
		n := &nodes[i]
		if lost := fragment.GPU(n, asking) / fragment.Whole; lost > 0 {
			fmt.Fprintf(out, "  %s: %.2f of %.2f free GPUs in fragments, %.1f cores free\n", n.Name, lost, float64(n.FreeGPU())/fragment.Whole, float64(n.Cores)/1000)
		}
	}
	return nil
}

// read reads the cluster. On a terminal it would wait for input without a word, so that is an error.
func read(set *flag.FlagSet, in io.Reader, labels kube.Labels) (*kube.Snapshot, error) {
	if file, ok := in.(*os.File); ok {
		if about, err := file.Stat(); err == nil && about.Mode()&os.ModeCharDevice != 0 {
			return nil, fmt.Errorf("%s reads the cluster from standard input: "+
				"kubectl get nodes,pods,resourceslices,resourceclaims -A -o json | rowmill-placement %[1]s", set.Name())
		}
	}
	return kube.Read(in, labels)
}

// readLike reads the cluster and the pod that a command asks about.
func readLike(command, about string, arguments []string, in io.Reader, out io.Writer, more func(*flag.FlagSet)) (*placement.Cluster, *kube.Pod, error) {
	set := flags(command, " NAMESPACE/POD", about)
	labels := snapshotFlags(set)
	var options placement.Options
	set.Float64Var(&options.UplinkNICs, "uplink-nics", 0, "bandwidth of a leaf's uplink in NICs; 0: as many as its nodes have")
	more(set)
	if err := parse(set, arguments, out); err != nil {
		return nil, nil, err
	}
	if set.NArg() != 1 {
		return nil, nil, fmt.Errorf("%s: name one pod as namespace/name, after the flags; got %d names", command, set.NArg())
	}
	s, err := read(set, in, *labels)
	if err != nil {
		return nil, nil, err
	}
	pod, err := s.Find(set.Arg(0))
	if err != nil {
		return nil, nil, err
	}
	c, err := s.Cluster(options)
	printWarnings(out, s)
	return c, pod, err
}

func runPlan(arguments []string, in io.Reader, out io.Writer) error {
	limit := 0
	c, pod, err := readLike("plan", `Counts how many more pods like one of the cluster fit, by the rules of rowmill-scheduler, and says what blocks the next.`, arguments, in, out, func(set *flag.FlagSet) {
		set.IntVar(&limit, "limit", 10_000, "count at most this many pods")
	})
	if err != nil {
		return err
	}
	copies, blocked, err := c.Plan([]placement.Instance{pod.Instance}, limit)
	if err != nil {
		return err
	}
	if copies == 1 {
		fmt.Fprintf(out, "1 more pod like %s fits\n", pod.Name)
	} else {
		fmt.Fprintf(out, "%d more pods like %s fit\n", copies, pod.Name)
	}
	if blocked != nil {
		fmt.Fprintf(out, "what blocks the next: %v\n", blocked)
	}
	return nil
}

func runExplain(arguments []string, in io.Reader, out io.Writer) error {
	c, pod, err := readLike("explain", `Says on which node a pod that waits would run, or how many nodes each rule rejects and what the nearest node lacks.`, arguments, in, out, func(*flag.FlagSet) {})
	if err != nil {
		return err
	}
	if pod.Node != "" {
		fmt.Fprintf(out, "%s runs on node %q\n", pod.Name, pod.Node)
		return nil
	}
	a, err := c.Find(pod.Instance)
	if rejection := new(placement.Rejection); errors.As(err, &rejection) {
		fmt.Fprintf(out, "%s waits: %v\n", pod.Name, rejection)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s fits on node %q", pod.Name, a.Node)
	if a.NICIndex >= 0 {
		fmt.Fprintf(out, "; its devices and NIC are on: %s", a.Distance)
	}
	fmt.Fprintln(out)
	return nil
}
