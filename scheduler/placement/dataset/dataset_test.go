package dataset

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"
)

// Rows in all forms of the public files, and invalid rows, which must be refused with line and column.

const traceHeader = "instance_sn,role,app_name,cpu_request,gpu_request,rdma_request,memory_request,disk_request," +
	"max_instance_per_node,creation_time,scheduled_time,deletion_time\n"

func TestTraceReadsMissingTimes(t *testing.T) {
	rows := "a,HN,x,12,1,25,120.5,640,8,,,\n" +
		"b,CN,x,64,0,1,320,255,-1,NaN,NaN,12.5\n" +
		"c,CN,x,64,0,1,320,255,-1,10,11.5,NaN\n"
	jobs, err := ReadTrace("trace", strings.NewReader(traceHeader+rows))
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := jobs[0], jobs[1], jobs[2]
	if a.Created != 0 || a.Scheduled != -1 || !math.IsInf(a.Deleted, 1) || a.Density != 8 || a.GPUs != 1 || a.Cores != 12_000 || a.Memory != 123_392 {
		t.Errorf("empty times: %+v", a)
	}
	if b.Created != 0 || b.Deleted != 12.5 || b.Density != 0 {
		t.Errorf("NaN times: %+v", b)
	}
	if c.Created != 10 || c.Scheduled != 11.5 || !math.IsInf(c.Deleted, 1) {
		t.Errorf("times: %+v", c)
	}
}

func TestMalformedRowsNameLineAndColumn(t *testing.T) {
	good := "a,HN,x,12,1,25,120,640,8,,,\n"
	trace := func(row string) func() error {
		return func() error {
			_, err := ReadTrace("trace", strings.NewReader(traceHeader+good+row))
			return err
		}
	}
	nodes := func(text string) func() error {
		return func() error {
			_, err := ReadNodes("nodes", strings.NewReader(text))
			return err
		}
	}
	pods := func(row string) func() error {
		return func() error {
			_, err := ReadPods("pods", strings.NewReader("cpu_milli,memory_mib,num_gpu,gpu_milli\n"+row))
			return err
		}
	}
	for _, one := range []struct {
		name string
		read func() error
		says string
	}{
		{"negative cores", trace("b,CN,x,-64,0,1,320,255,-1,,,\n"), `trace: line 3, column 8: cpu_request must be a number >= 0, got "-64"`},
		{"missing memory", trace("b,CN,x,64,0,1,,255,-1,,,\n"), `line 3, column 15: memory_request must be a number >= 0, got ""`},
		{"fraction of a GPU", trace("b,CN,x,64,0.5,1,320,255,-1,,,\n"), "line 3, column 11: gpu_request must be a whole number"},
		{"share above a NIC", trace("b,CN,x,64,0,101,320,255,-1,,,\n"), "rdma_request must be in [0, 100]"},
		{"unknown role", trace("b,XN,x,64,0,1,320,255,-1,,,\n"), `role must be CN or HN, got "XN"`},
		{"density", trace("b,CN,x,64,0,1,320,255,-2,,,\n"), "max_instance_per_node must be a whole number >= 0"},
		{"text as time", trace("b,CN,x,64,0,1,320,255,-1,soon,,\n"), `creation_time must be seconds >= 0, empty or NaN, got "soon"`},
		{"infinite time", trace("b,CN,x,64,0,1,320,255,-1,Inf,,\n"), "creation_time must be seconds"},
		{"deletion before creation", trace("b,CN,x,64,0,1,320,255,-1,10,10,9\n"), `line 3: instance "b" is deleted at 9, before its creation at 10`},
		{"instance twice", trace(good), `line 3: instance "a" is listed twice`},
		{"too few columns", trace("b,CN\n"), "wrong number of fields"},
		{"no header", nodes(""), "nodes: read the header"},
		{"no column", nodes("sn,cpu_milli\n"), `nodes: line 1: no column "memory_mib"`},
		{"node twice", nodes("sn,cpu_milli,memory_mib,gpu\na,1,1,1\na,1,1,1\n"), `line 3: node "a" is listed twice`},
		{"negative GPUs", nodes("sn,cpu_milli,memory_mib,gpu\na,1,1,-1\n"), "line 2, column 7: gpu must be a whole number"},
		{"share of nothing", pods("1,1,1,0\n"), "gpu_milli must be in [1, 1000]"},
		{"share above a GPU", pods("1,1,1,1001\n"), "gpu_milli must be in [1, 1000]"},
	} {
		if err := one.read(); err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: got %v, want an error with %q", one.name, err, one.says)
		}
	}
}

type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

func TestGeneratedFilesHaveThePublicShape(t *testing.T) {
	write := func(seed uint64) map[string]*buffer {
		files := map[string]*buffer{}
		if err := Generate(seed, func(name string) (io.WriteCloser, error) {
			files[name] = &buffer{}
			return files[name], nil
		}); err != nil {
			t.Fatal(err)
		}
		return files
	}
	files, again, other := write(1), write(1), write(2)
	if !bytes.Equal(files[TraceFile].Bytes(), again[TraceFile].Bytes()) || bytes.Equal(files[TraceFile].Bytes(), other[TraceFile].Bytes()) {
		t.Error("two seeds give equal files")
	}
	nodes, err := ReadNodes(NodesFile, files[NodesFile])
	if err != nil || len(nodes) != 1213 {
		t.Errorf("%d nodes, %v", len(nodes), err)
	}
	pods, err := ReadPods(PodsFile, files[PodsFile])
	if err != nil || len(pods) != 8152 {
		t.Errorf("%d pods, %v", len(pods), err)
	}
	jobs, err := ReadTrace(TraceFile, files[TraceFile])
	if err != nil || len(jobs) != 23_871 {
		t.Errorf("%d instances, %v", len(jobs), err)
	}
}
