// Command rowmill-placement runs the study of stranded GPUs, and answers questions about a Kubernetes cluster.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

const usage = `usage: rowmill-placement COMMAND [flags]

The study:
  study      run the parts of the study that are named: facts yardstick cluster-h trace promotion speed
  fit        fit the share of empty nodes of cluster H to the published fragments
  generate   write data sets with the shape of the public ones

A cluster, read from standard input:
  kubectl get nodes,pods,resourceslices,resourceclaims -A -o json | rowmill-placement COMMAND
  fragments  free cores and GPUs that no pod like those of the cluster can use
  plan       how many more pods like one of the cluster fit, and what blocks the next
  explain    where a pod that waits would run, or which rule turns each node away

rowmill-placement COMMAND -h lists the flags.
`

var errUsage = errors.New("usage")

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		if !errors.Is(err, errUsage) && !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "rowmill-placement:", err)
			os.Exit(1)
		}
		os.Exit(2)
	}
}

func run(arguments []string, in io.Reader, out io.Writer) error {
	if len(arguments) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errUsage
	}
	commands := map[string]func([]string, io.Reader, io.Writer) error{
		"study": runStudy, "fit": runFit, "generate": runGenerate,
		"fragments": runFragments, "plan": runPlan, "explain": runExplain,
	}
	command, ok := commands[arguments[0]]
	if !ok {
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("unknown command %q", arguments[0])
	}
	return command(arguments[1:], in, out)
}

// flags returns a flag set that reports errors instead of ending the program.
func flags(command string) *flag.FlagSet {
	return flag.NewFlagSet("rowmill-placement "+command, flag.ContinueOnError)
}
