package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rowmill.io/scheduler/placement/chart"
	"rowmill.io/scheduler/placement/dataset"
	"rowmill.io/scheduler/placement/study"
)

// report is the JSON object of a study; parts that were not run are absent.
type report struct {
	Data      string                 `json:"data"`
	Facts     *study.Facts           `json:"facts,omitempty"`
	Yardstick *study.YardstickResult `json:"yardstick,omitempty"`
	ClusterH  *study.HResult         `json:"cluster_h,omitempty"`
	Trace     *study.TraceResult     `json:"trace,omitempty"`
	Limits    *study.LimitsResult    `json:"limits,omitempty"`
	Promotion *study.PromotionResult `json:"promotion,omitempty"`
	Speed     *study.SpeedResult     `json:"speed,omitempty"`
}

var studyParts = []string{"facts", "yardstick", "cluster-h", "trace", "limits", "promotion", "speed"}

func runStudy(arguments []string, _ io.Reader, out io.Writer) error {
	set := flags("study", " PART...", `Runs parts of the study and prints one JSON object. Parts: facts yardstick cluster-h trace limits promotion speed.
promotion and speed need no data.`)
	folder := set.String("data", "", "folder of the public data sets, or of generated ones")
	quick := set.Bool("quick", false, "use few seeds; ends within three minutes on two cores")
	count := set.Int("seeds", 0, "number of seeds per part; 0: the default of the part")
	pictures := set.String("pictures", "", "folder for SVG charts")
	decisions := set.Int("decisions", 200_000, "number of decisions that the part speed measures")
	if err := parse(set, arguments, out); err != nil {
		return err
	}
	seeds := study.FullSeeds
	if *quick {
		seeds = study.QuickSeeds
	}
	if *count > 0 {
		seeds = study.Seeds{Yardstick: *count, ClusterH: *count, Trace: *count, Limits: *count}
	}
	parts := set.Args()
	if len(parts) == 0 {
		return fmt.Errorf("study: name at least one part: %s", strings.Join(studyParts, " "))
	}
	for _, part := range parts {
		if !slices.Contains(studyParts, part) {
			return fmt.Errorf("study: unknown part %q; use %s", part, strings.Join(studyParts, " "))
		}
	}
	var data *study.Data
	result := report{Data: *folder}
	figures := map[string]*chart.Figure{}
	for _, part := range parts {
		var err error
		if data == nil && part != "promotion" && part != "speed" {
			if data, err = readData(*folder); err != nil {
				return err
			}
		}
		fmt.Fprintln(os.Stderr, "study:", part)
		switch part {
		case "facts":
			var facts study.Facts
			facts, err = study.RunFacts(data)
			result.Facts = &facts
		case "yardstick":
			yardstick := study.RunYardstick(data, seeds.Yardstick)
			result.Yardstick = &yardstick
			maps.Copy(figures, study.YardstickPictures(&yardstick))
		case "cluster-h":
			h := study.RunClusterH(data, seeds.ClusterH)
			result.ClusterH = &h
			maps.Copy(figures, study.ClusterHPictures(data, &h))
		case "trace":
			var trace study.TraceResult
			trace, err = study.RunTrace(data, seeds.Trace)
			result.Trace = &trace
			maps.Copy(figures, study.TracePictures(&trace))
		case "limits":
			var limits study.LimitsResult
			limits, err = study.RunLimits(data, seeds.Limits)
			result.Limits = &limits
			maps.Copy(figures, study.LimitsPictures(&limits))
		case "promotion":
			var promotion study.PromotionResult
			promotion, err = study.Promotion()
			result.Promotion = &promotion
		case "speed":
			var speed study.SpeedResult
			speed, err = study.Speed(1, *decisions)
			result.Speed = &speed
		}
		if err != nil {
			return fmt.Errorf("study: %w", err)
		}
	}
	if *pictures != "" {
		if err := draw(*pictures, figures); err != nil {
			return err
		}
	}
	return writeJSON(out, result)
}

func writeJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(value)
}

func draw(folder string, figures map[string]*chart.Figure) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if err := os.WriteFile(filepath.Join(folder, name+".svg"), figures[name].SVG(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readData reads the three files of the traces from a folder.
func readData(folder string) (*study.Data, error) {
	data := &study.Data{}
	read := func(name string, parse func(io.Reader) error) error {
		file, err := os.Open(filepath.Join(folder, name))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("folder %q has no file %s: openb_* and disaggregated_DLRM_trace.csv are published in alibaba/clusterdata "+
				"(cluster-trace-gpu-v2023 and -v2025); name their folder with -data, or generate similar files with: "+
				"rowmill-placement generate -out FOLDER", filepath.Join(folder, "."), name)
		}
		if err != nil {
			return err
		}
		defer file.Close()
		return parse(file)
	}
	if err := read(dataset.NodesFile, func(r io.Reader) (err error) { data.Nodes, err = dataset.ReadNodes(dataset.NodesFile, r); return }); err != nil {
		return nil, err
	}
	if err := read(dataset.PodsFile, func(r io.Reader) (err error) { data.Pods, err = dataset.ReadPods(dataset.PodsFile, r); return }); err != nil {
		return nil, err
	}
	return data, read(dataset.TraceFile, func(r io.Reader) (err error) { data.Trace, err = dataset.ReadTrace(dataset.TraceFile, r); return })
}

func runFit(arguments []string, _ io.Reader, out io.Writer) error {
	set := flags("fit", "", `Fits the share of nodes of cluster H that stay empty to the published fragments before the split, and prints it.`)
	folder := set.String("data", "", "folder of the public data sets")
	rounds := set.Int("rounds", 6, "number of rounds of the fit")
	if err := parse(set, arguments, out); err != nil {
		return err
	}
	data, err := readData(*folder)
	if err != nil {
		return err
	}
	w := study.NewWorkload(data.Pods, data.Trace, study.Larger)
	knobs, mean := study.Fit(&w, *rounds)
	return writeJSON(out, map[string]any{
		"knobs": knobs, "fragment_cores": mean.Before.FragmentCores, "fragment_gpus": mean.Before.FragmentGPUs,
	})
}

func runGenerate(arguments []string, _ io.Reader, out io.Writer) error {
	set := flags("generate", "", `Writes three files with the shape of the public traces. It overwrites no file.`)
	folder := set.String("out", "", "folder to write to")
	seed := set.Uint64("seed", 1, "random seed")
	if err := parse(set, arguments, out); err != nil {
		return err
	}
	if *folder == "" {
		return fmt.Errorf("generate: name a folder with -out")
	}
	if err := os.MkdirAll(*folder, 0o755); err != nil {
		return err
	}
	return dataset.Generate(*seed, func(name string) (io.WriteCloser, error) {
		return os.OpenFile(filepath.Join(*folder, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	})
}
