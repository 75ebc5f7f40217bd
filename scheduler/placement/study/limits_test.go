package study

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
)

// The lower bound of crossings holds for the best of all placements, which small clusters allow to find.

func TestNoPlacementBeatsTheBoundOfCrossings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores := rapid.Int64Range(6, 20).Draw(t, "cores of a node")
		nodes := clos(1, rapid.IntRange(1, 3).Draw(t, "leaves"), share{kind{name: "small", cores: cores, memory: 64, disk: 64, gpus: 2}, 1})
		var jobs []dataset.Lifetime
		var counts [2]int
		for i := range rapid.IntRange(2, 7).Draw(t, "instances") {
			in := placement.Instance{Name: fmt.Sprint(i), Service: "x"}
			in.Cores = 1000 * rapid.Int64Range(1, 4).Draw(t, "requested cores")
			in.NIC = rapid.SampledFrom([]int{0, 30, 60}).Draw(t, "NIC")
			if rapid.Bool().Draw(t, "dense") {
				in.Role, in.GPUs = placement.RoleDense, 1
			}
			counts[in.Role]++
			jobs = append(jobs, dataset.Lifetime{Instance: in, Deleted: math.Inf(1)})
		}
		best := mostTogether(nodes, jobs)
		if bound := leafMosts(nodes, jobs)["x"].together(counts[0], counts[1]); best > bound {
			t.Fatalf("%d pairs are below one leaf, the bound is %d", best, bound)
		}
	})
}

func TestBoundOfCrossingsByHand(t *testing.T) {
	forever := math.Inf(1)
	var jobs []dataset.Lifetime
	for i := range 6 {
		jobs = append(jobs, job(fmt.Sprint("c", i), "x", placement.RoleCPU, 48, 0, forever))
	}
	for i := range 4 {
		jobs = append(jobs, job(fmt.Sprint("d", i), "x", placement.RoleDense, 8, 0, forever))
	}
	// A leaf with one node of 128 cores and one GPU holds two CPU instances, or one dense instance.
	nodes := clos(1, 8, share{inference128, 1})
	most := leafMosts(nodes, jobs)["x"]
	if most[placement.RoleCPU] != 2 || most[placement.RoleDense] != 1 {
		t.Fatalf("a leaf holds %v", most)
	}
	// Of 24 pairs, at most 4 * 2 and at most 6 * 1 are below one leaf.
	if got := most.together(6, 4); got != 6 {
		t.Errorf("%d pairs together", got)
	}
	with, err := newScheduler(nodes, jobs, "rowmill", nil)
	if err != nil {
		t.Fatal(err)
	}
	record := recordEvents(nodes, jobs, with, nil)
	record.sampleUntil(samplePeriod)
	if run := record.result(); run.Unplaced != 0 || run.Fewest != 75 || run.ServiceFewest != 75 || run.Crossings < 75 {
		t.Errorf("a bound of 75 %% of pairs: %+v", run)
	}
}

func TestSmallCasesAreComparedWithTheBestPlacement(t *testing.T) {
	figures, err := smallCases(1)
	if err != nil {
		t.Fatal(err)
	}
	ours, best := figures["rowmill_leaf_crossings_percent"], figures["fewest_leaf_crossings_percent"]
	if ours.Seeds != smallCount || ours.Mean < best.Mean || best.Mean <= 0 || figures["rowmill_is_best_percent"].Mean <= 0 {
		t.Errorf("ours %+v, best %+v", ours, best)
	}
	t.Logf("%+v", figures)
}

func TestEachAloneAddsUpThePairsOfAllServices(t *testing.T) {
	jobs := smallTrace(t)
	figures, err := eachAlone(jobs, 1)
	if err != nil {
		t.Fatal(err)
	}
	crossings, fewest, share := figures["leaf_crossings_percent"].Mean, figures["fewest_leaf_crossings_percent"].Mean, figures["largest_service_pairs_percent"].Mean
	if crossings < fewest || fewest < 0 || crossings > 100 || share <= 0 || share > 100 {
		t.Errorf("%+v", figures)
	}
	sum, most := addSamples([][]pairSample{{{1, 1, 1}}, {{4, 1, 2}, {6, 0, 3}}})
	if most != 1 || len(sum) != 2 || sum[0] != (pairSample{5, 2, 3}) || sum[1] != (pairSample{6, 0, 3}) {
		t.Errorf("%v, %d", sum, most)
	}
	if got, least := crossingsOf(sum); got != 80 || least != 45 {
		t.Errorf("%v and at least %v %% of pairs cross", got, least)
	}
}

func TestPictureOfLeafSizes(t *testing.T) {
	result := LimitsResult{Figures: map[string]map[string]Interval{}}
	for i, factor := range leafFactors {
		result.Figures[leavesOf(factor)] = map[string]Interval{
			"rowmill_leaf_crossings_percent":                {Mean: float64(10 * i)},
			"least-allocated_leaf_crossings_percent":        {Mean: 90},
			"least-allocated_fewest_leaf_crossings_percent": {Mean: float64(i)},
		}
	}
	figure := LimitsPictures(&result)["limits_leaf_sizes"]
	if !slices.Equal(figure.Labels, []string{"32", "64", "128", "256"}) || len(figure.Series) != 3 {
		t.Fatalf("%+v", figure)
	}
	for i, want := range [][]float64{{0, 10, 20, 30}, {90, 90, 90, 90}, {0, 1, 2, 3}} {
		if !slices.Equal(figure.Series[i].Y, want) {
			t.Errorf("%s: %v, want %v", figure.Series[i].Name, figure.Series[i].Y, want)
		}
	}
	if !strings.Contains(string(figure.SVG()), "lower bound") {
		t.Error("the chart does not name the lower bound")
	}
}
