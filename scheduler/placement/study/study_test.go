package study

import (
	"encoding/csv"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
	"rowmill.io/scheduler/placement/fragment"
)

// The study on the public traces, if they are available, and its parts on inputs that can be checked by hand.

// publicFile opens a file of the public data sets, or skips the test.
func publicFile(t *testing.T, name string) *os.File {
	t.Helper()
	for _, folder := range []string{os.Getenv("ROWMILL_DATA"), "../../../../shared/data"} {
		if folder == "" {
			continue
		}
		if file, err := os.Open(filepath.Join(folder, "cluster", name)); err == nil {
			t.Cleanup(func() { file.Close() })
			return file
		}
	}
	t.Skipf("no file cluster/%s in the folder that ROWMILL_DATA names", name)
	return nil
}

func publicData(t *testing.T) *Data {
	t.Helper()
	data := &Data{}
	var err error
	for _, read := range []func() error{
		func() error {
			data.Nodes, err = dataset.ReadNodes("nodes", publicFile(t, dataset.NodesFile))
			return err
		},
		func() error { data.Pods, err = dataset.ReadPods("pods", publicFile(t, dataset.PodsFile)); return err },
		func() error {
			data.Trace, err = dataset.ReadTrace("trace", publicFile(t, dataset.TraceFile))
			return err
		},
	} {
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
	return data
}

// published returns the mean of a metric over the published runs of a policy.
func published(t *testing.T, policy, metric, arrived string) float64 {
	t.Helper()
	rows, err := csv.NewReader(publicFile(t, "fgd_openb_default_expected.csv")).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	sum, count := 0.0, 0
	for _, row := range rows[1:] {
		if row[0] == policy && row[2] == metric && row[3] == arrived {
			value, err := strconv.ParseFloat(row[4], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum, count = sum+value, count+1
		}
	}
	if count != 10 {
		t.Fatalf("%d published runs of %s", count, policy)
	}
	return sum / float64(count)
}

func TestYardstickIsWithinHalfAPointOfThePublishedValues(t *testing.T) {
	data := publicData(t)
	// One seed is some tenths of a point from the mean of ten, so the test averages three.
	const seeds, limit = 3, 0.5
	result := RunYardstick(data, seeds)
	for policy, name := range map[string]string{"random": "Random", "best-fit": "BestFit", "fgd": "FGD"} {
		for figure, want := range map[string]float64{
			"allocated_percent": published(t, name, "gpu_allocated_pct", "130"),
			"fragments_percent": published(t, name, "fragment_pct_of_all_gpus", "90"),
		} {
			if got := result.Summary[policy][figure].Mean; math.Abs(got-want) > limit {
				t.Errorf("%s: %s is %.2f, published %.2f", policy, figure, got, want)
			}
		}
	}
}

func TestPromotionNeedsThePublishedNodes(t *testing.T) {
	r, err := Promotion()
	if err != nil {
		t.Fatal(err)
	}
	if r.Whole != 70 || r.Split != 18 || r.MIG != 6 || r.Instances != 140 || r.More != 4 {
		t.Errorf("got %+v, want 70, 18 and 6 nodes for 140 instances, and room for 4 more", r)
	}
}

func TestClusterHHasThePublishedSizeAndFragmentsBeforeTheSplit(t *testing.T) {
	nodes, cores, gpus := 0, 0.0, 0
	for _, kind := range hKinds {
		nodes += kind.count
		cores += float64(kind.count) * float64(kind.cores)
		gpus += kind.count * kind.gpus
		if kind.gpus == 8 && kind.cores/int64(kind.gpus) >= 20 {
			t.Errorf("nodes with eight GPUs have %d cores", kind.cores)
		}
	}
	if nodes < 4000 || math.Abs(cores-640_000) > 0.03*640_000 || math.Abs(float64(gpus)-11_000) > 0.03*11_000 {
		t.Errorf("%d nodes, %.0f cores, %d GPUs", nodes, cores, gpus)
	}
	data := publicData(t)
	w := NewWorkload(data.Pods, data.Trace, Larger)
	run := ClusterH(&w, FittedKnobs, "best-fit", fittedLevel, afterSeed)
	if math.Abs(run.AllocatedCores-0.9) > 0.002 || math.Abs(run.AllocatedGPUs-0.9) > 0.002 {
		t.Errorf("allocated %.4f of cores, %.4f of GPUs", run.AllocatedCores, run.AllocatedGPUs)
	}
	if b := run.Before; math.Abs(b.FragmentCores-targetCores) > 0.1*targetCores || math.Abs(b.FragmentGPUs-targetGPUs) > 0.1*targetGPUs {
		t.Errorf("fragments before: %.0f cores, %.1f GPUs", b.FragmentCores, b.FragmentGPUs)
	}
	if run.After.FragmentCores >= run.Before.FragmentCores || run.After.FragmentGPUs >= run.Before.FragmentGPUs {
		t.Errorf("the split saves nothing: %+v after %+v", run.After, run.Before)
	}
}

func TestPodRulesDecideWhichGPUFragmentsRemain(t *testing.T) {
	data := publicData(t)
	for i := range PodRules {
		rule := &PodRules[i]
		w := NewWorkload(rule.apply(data.Pods), data.Trace, Larger)
		w.reserve = rule.Reserve
		run := ClusterH(&w, FittedKnobs, "best-fit", fittedLevel, afterSeed)
		if b := run.Before; math.Abs(b.FragmentCores-targetCores) > 0.1*targetCores || math.Abs(b.FragmentGPUs-targetGPUs) > 0.1*targetGPUs {
			t.Errorf("%s: fragments before: %.0f cores, %.1f GPUs", rule.Name, b.FragmentCores, b.FragmentGPUs)
		}
		if rule.WholeGPUs != (run.Partial == 0) || run.After.FragmentGPUs < run.Partial-1e-6 {
			t.Errorf("%s: %.1f GPUs in fragments, %.1f of them parts of shared GPUs", rule.Name, run.After.FragmentGPUs, run.Partial)
		}
		if rule.Reserve > 0 && run.After.FragmentGPUs > 10 {
			t.Errorf("%s: %.1f GPUs in fragments, although dense instances find cores", rule.Name, run.After.FragmentGPUs)
		}
		// Reserved cores are given back.
		cores := int64(0)
		for j := range run.nodes {
			cores += run.nodes[j].Cores
		}
		if free := (1 - run.AllocatedCores) * 640_000_000; math.Abs(float64(cores)-free) > 1 {
			t.Errorf("%s: %d millicores are free, want %.0f", rule.Name, cores, free)
		}
	}
}

func job(name, service string, role placement.Role, cores int64, created, deleted float64) dataset.Lifetime {
	in := placement.Instance{Name: name, Service: service, Role: role, Resources: placement.Resources{Cores: 1000 * cores}}
	if role == placement.RoleDense {
		in.GPUs, in.NIC, in.Density = 1, 25, 2
	} else {
		in.NIC = 1
	}
	return dataset.Lifetime{Instance: in, Created: created, Scheduled: created, Deleted: deleted}
}

func TestMonolithsFollowTheLargerHalf(t *testing.T) {
	forever := math.Inf(1)
	jobs := []dataset.Lifetime{
		job("c1", "x", placement.RoleCPU, 64, 0, forever),
		job("c2", "x", placement.RoleCPU, 64, 0, 50),
		job("c3", "x", placement.RoleCPU, 48, 20, 30),
		job("d1", "x", placement.RoleDense, 8, 10, forever),
	}
	whole := Whole(jobs, Larger)
	if len(whole) != 3 {
		t.Fatalf("%d monoliths", len(whole))
	}
	for i, want := range [][2]float64{{0, forever}, {0, 50}, {20, 30}} {
		m := whole[i]
		if m.Created != want[0] || m.Deleted != want[1] || m.Cores != 72_000 || m.GPUs != 1 || m.Density != 2 || m.NIC != 0 {
			t.Errorf("monolith %d: %+v", i, m)
		}
	}
	if dense := Whole(jobs, func(_, dense int) int { return dense }); len(dense) != 1 || dense[0].Created != 10 {
		t.Errorf("by dense instances: %+v", dense)
	}
}

// smallTrace returns a generated trace that just fits on a cluster of some racks.
func smallTrace(t *testing.T) []dataset.Lifetime {
	t.Helper()
	files := map[string]*strings.Builder{}
	err := dataset.Generate(1, func(name string) (io.WriteCloser, error) {
		files[name] = &strings.Builder{}
		return nopCloser{files[name]}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := dataset.ReadTrace("trace", strings.NewReader(files[dataset.TraceFile].String()))
	if err != nil {
		t.Fatal(err)
	}
	return jobs[:600]
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestAllPoliciesRespectResourcesAndOursRespectsEveryRule(t *testing.T) {
	jobs := smallTrace(t)
	nodes := clos(2, 4, share{inference128, 12}, share{inference192, 4}, share{training, 2})
	for _, policy := range TracePolicies {
		run, err := replay(nodes, jobs, policy, 1)
		if err != nil {
			t.Fatal(err)
		}
		if run.NICPeak > 100 {
			t.Errorf("%s: a NIC has %v %%", policy, run.NICPeak)
		}
		if run.Unplaced == run.Instances {
			t.Errorf("%s places nothing", policy)
		}
		again, err := replay(nodes, jobs, policy, 1)
		if err != nil || again != run {
			t.Errorf("%s: the same seed gives %+v, then %+v, %v", policy, run, again, err)
		}
		if !strings.HasPrefix(policy, "rowmill") {
			continue
		}
		if run.DensityBreaches+run.UplinkBreaches != 0 || run.UplinkPeak > 80 {
			t.Errorf("%s breaks rules: %+v", policy, run)
		}
		if policy == "rowmill" && (run.SpineBreaches != 0 || run.SpineCrossings != 0) {
			t.Errorf("the hard rule is broken: %+v", run)
		}
	}
}

// eager retries every waiting instance after any release.
type eager struct{ scheduler }

func (eager) mayFit(*placement.Instance, []int) bool { return true }

func TestSkippedRetriesWouldHaveFailed(t *testing.T) {
	jobs := smallTrace(t)
	nodes := clos(2, 2, share{inference128, 10}, share{inference192, 3}, share{training, 2})
	for _, policy := range TracePolicies {
		if policy == "random" {
			// A failed retry draws no random number, but one that succeeds elsewhere would.
			continue
		}
		var runs [2]TraceRun
		for i := range runs {
			with, err := newScheduler(nodes, jobs, policy, nil)
			if err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				with = eager{with}
			}
			runs[i] = runEvents(nodes, jobs, with, nil)
		}
		if runs[0] != runs[1] || runs[0].Waited == 0 {
			t.Errorf("%s: %+v, retrying everything %+v", policy, runs[0], runs[1])
		}
	}
}

func TestRecorderSeesBrokenRules(t *testing.T) {
	forever := math.Inf(1)
	jobs := []dataset.Lifetime{
		job("c", "x", placement.RoleCPU, 8, 0, forever),
		job("d1", "x", placement.RoleDense, 8, 0, forever),
		job("d2", "x", placement.RoleDense, 8, 0, forever),
	}
	nodes := clos(2, 1, share{inference128, 1})
	r := newRecorder(nodes, jobs)
	r.placed(0, spot{node: 0}, 0)
	r.placed(1, spot{node: 0}, 0)
	r.placed(2, spot{node: 0}, 5)
	if r.run.DensityBreaches != 1 || r.run.SpineBreaches != 0 || r.run.Waited != 1 {
		t.Errorf("three of two on one node: %+v", r.run)
	}
	r.released(2, spot{node: 0})
	r.placed(2, spot{node: 1, distance: placement.Far}, 5)
	r.sampleUntil(samplePeriod)
	run := r.result()
	if run.SpineBreaches != 1 || run.Crossings != 50 || run.SpineCrossings != 50 || run.NodesPeak != 2 || run.NearSwitch != 75 {
		t.Errorf("one of two pairs crosses: %+v", run)
	}
}

func TestWaitingInstancesRunWhenRoomIsFreed(t *testing.T) {
	jobs := []dataset.Lifetime{
		job("first", "x", placement.RoleCPU, 128, 0, 100),
		job("waits", "x", placement.RoleCPU, 128, 10, math.Inf(1)),
		job("gives up", "x", placement.RoleCPU, 128, 20, 90),
	}
	run, err := replay(clos(1, 1, share{inference128, 1}), jobs, "best-fit", 1)
	if err != nil || run.Unplaced != 1 || run.Waited != 1 || run.WaitMax != 90 {
		t.Errorf("%+v, %v", run, err)
	}
}

func TestFactsOfThePublicTraces(t *testing.T) {
	f, err := RunFacts(publicData(t))
	if err != nil {
		t.Fatal(err)
	}
	if f.DailyWave > 5 || f.Stranded != 6 || f.MonolithsAbove20 < 90 {
		t.Errorf("got %+v", f)
	}
}

func TestIntervals(t *testing.T) {
	if i := IntervalOf([]float64{1, 2, 3}); i.Mean != 2 || math.Abs(i.Half-4.303/math.Sqrt(3)) > 1e-3 || i.Seeds != 3 {
		t.Errorf("got %+v", i)
	}
	if i := IntervalOf([]float64{7}); i.Mean != 7 || i.Half != 0 {
		t.Errorf("one value: %+v", i)
	}
}

func TestUnknownNamesAreRefused(t *testing.T) {
	if _, err := Trace(nil, "rowmill", "half", 1); err == nil {
		t.Error("form half is no error")
	}
}

func TestParallelKeepsTheOrder(t *testing.T) {
	got := parallel(50, func(i int) int { return i * i })
	if !slices.IsSorted(got) || len(got) != 50 || got[7] != 49 {
		t.Errorf("got %v", got)
	}
}

func TestFleetDecidesWithoutLosingInstances(t *testing.T) {
	if testing.Short() {
		t.Skip("places 20,000 instances")
	}
	f, err := NewFleet(1)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		f.Decide()
	}
	if f.cluster.Len() != len(f.running) || f.result.Nodes != 5000 || f.result.GPUs < 10_000 || f.result.Cores < 800_000 {
		t.Errorf("%d run, %d are known; %+v", f.cluster.Len(), len(f.running), f.result)
	}
}

func BenchmarkDecide(b *testing.B) {
	f, err := NewFleet(1)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		f.Decide()
	}
}

func TestClassesOfTheWorkload(t *testing.T) {
	data := &Data{
		Pods: []fragment.Pod{{Cores: 1000, GPUs: 1, Share: 500}},
		Trace: []dataset.Lifetime{
			job("c", "x", placement.RoleCPU, 64, 0, 10), job("d", "x", placement.RoleDense, 8, 0, 10),
		},
	}
	w := NewWorkload(data.Pods, data.Trace, Larger)
	if len(w.Monoliths) != 1 || w.Monoliths[0].Cores != 72_000 || w.Monoliths[0].NIC != 0 || w.CPU[0].Cores != 64_000 || w.Dense[0].GPUs != 1 {
		t.Errorf("got %+v", w)
	}
	if len(w.allBefore) != 2 || len(w.allAfter) != 3 {
		t.Errorf("%d classes before, %d after", len(w.allBefore), len(w.allAfter))
	}
}
