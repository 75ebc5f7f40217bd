// Command rowmill-placement runs the study of stranded GPUs, and answers questions about a Kubernetes cluster.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
)

const usage = `usage: rowmill-placement COMMAND [flags]

Commands that read a Kubernetes cluster from standard input:
  kubectl get nodes,pods,resourceslices,resourceclaims -A -o json | rowmill-placement COMMAND
  fragments  count free cores and GPUs that no pod like those of the cluster can use
  plan       count how many more pods like one of the cluster fit, and say what blocks the next
  explain    say where a pod that waits would run, or how many nodes each rule rejects

Commands of the study of stranded GPUs (benchmarks/gpu_fragmentation):
  study      run parts of it: facts yardstick cluster-h trace limits promotion speed
  fit        fit the share of empty nodes of cluster H to the published fragments
  generate   write data sets with the shape of the public ones

rowmill-placement COMMAND -h describes a command and its flags.
`

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "rowmill-placement:", err)
		os.Exit(1)
	}
}

func run(arguments []string, in io.Reader, out io.Writer) error {
	if len(arguments) == 0 {
		return fmt.Errorf("name a command\n\n%s", usage)
	}
	if slices.Contains([]string{"-h", "-help", "--help", "help"}, arguments[0]) {
		fmt.Fprint(out, usage)
		return nil
	}
	commands := map[string]func([]string, io.Reader, io.Writer) error{
		"study": runStudy, "fit": runFit, "generate": runGenerate,
		"fragments": runFragments, "plan": runPlan, "explain": runExplain,
	}
	command, ok := commands[arguments[0]]
	if !ok {
		return fmt.Errorf("unknown command %q; rowmill-placement -h lists the commands", arguments[0])
	}
	err := command(arguments[1:], in, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return err
}

// flags returns the flags of a command. form is how the command is called, without its flags; about says what it does.
func flags(command, form, about string) *flag.FlagSet {
	set := flag.NewFlagSet(command, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {
		fmt.Fprintf(set.Output(), "usage: rowmill-placement %s [flags]%s\n\n%s\n\n", command, form, about)
		set.PrintDefaults()
	}
	return set
}

// parse reads the flags of a command. With -h it prints its help to out and returns flag.ErrHelp.
func parse(set *flag.FlagSet, arguments []string, out io.Writer) error {
	err := set.Parse(arguments)
	if errors.Is(err, flag.ErrHelp) {
		set.SetOutput(out)
		set.Usage()
		return err
	}
	if err != nil {
		return fmt.Errorf("%s: %w; rowmill-placement %[1]s -h lists the flags", set.Name(), err)
	}
	return nil
}
