// Package testplane runs a real control plane of Kubernetes on this machine, without nodes that run containers: etcd,
// kube-apiserver, kube-controller-manager and rowmill-scheduler as processes on loopback, with data in a temporary folder.
package testplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// programsVariable names the folder with the programs of the control plane.
const programsVariable = "ROWMILL_KUBE"

// startLimit bounds the start and the end of each process.
const startLimit = time.Minute

// Options describe a control plane.
type Options struct {
	// Folder receives logs and the kubeconfig.
	Folder string
	// Gates are feature gates of all programs, by name.
	Gates []string
	// APIs are groups and versions that the API server serves in addition, for example scheduling.k8s.io/v1alpha2.
	APIs []string
}

// Plane is a running control plane.
type Plane struct {
	Client     kubernetes.Interface
	Config     *rest.Config
	Kubeconfig string

	options     Options
	programs    string
	env         *envtest.Environment
	controllers *Process
}

// Start starts etcd, the API server and the controllers.
func Start(options Options) (*Plane, error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	// Without a logger, envtest prints a stack trace.
	log.SetLogger(logr.Discard())
	p := &Plane{options: options, programs: programs, Kubeconfig: filepath.Join(options.Folder, "kubeconfig")}
	p.env = &envtest.Environment{
		BinaryAssetsDirectory: programs, ControlPlaneStartTimeout: startLimit, ControlPlaneStopTimeout: startLimit,
	}
	flags := p.env.ControlPlane.GetAPIServer().Configure()
	// Without kubelets, nothing makes nodes ready or gives them service accounts.
	flags.Set("disable-admission-plugins", "ServiceAccount,TaintNodesByCondition")
	if gates := p.gates(); gates != "" {
		flags.Set("feature-gates", gates)
	}
	for _, api := range options.APIs {
		flags.Append("runtime-config", api+"=true")
	}
	if p.Config, err = p.env.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd and kube-apiserver of %s: %w", programs, err), p.env.Stop())
	}
	// The tests themselves are the load: the client must not slow them down.
	p.Config.QPS = -1
	if p.Client, err = kubernetes.NewForConfig(p.Config); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	if err := os.WriteFile(p.Kubeconfig, p.env.KubeConfig, 0o600); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	arguments := []string{
		"--kubeconfig=" + p.Kubeconfig, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=1000",
		// Nodes here have no kubelet that reports them alive.
		"--controllers=*,-node-lifecycle-controller",
	}
	if gates := p.gates(); gates != "" {
		arguments = append(arguments, "--feature-gates="+gates)
	}
	if p.controllers, err = p.start("kube-controller-manager", "controllers", arguments...); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// Stop ends the control plane. Schedulers are ended by Process.Stop.
func (p *Plane) Stop() error {
	var failed error
	if p.controllers != nil {
		failed = p.controllers.Stop()
	}
	return errors.Join(failed, p.env.Stop())
}

func (p *Plane) gates() string {
	enabled := make([]string, len(p.options.Gates))
	for i, gate := range p.options.Gates {
		enabled[i] = gate + "=true"
	}
	return strings.Join(enabled, ",")
}

// start runs a program of the control plane; its output goes to a log file.
func (p *Plane) start(program, name string, arguments ...string) (*Process, error) {
	return startProcess(filepath.Join(p.programs, program), filepath.Join(p.options.Folder, name+".log"), arguments...)
}

// Kubectl runs kubectl and returns what it prints.
func (p *Plane) Kubectl(ctx context.Context, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, filepath.Join(p.programs, "kubectl"), append([]string{"--kubeconfig=" + p.Kubeconfig}, arguments...)...)
	out, err := command.Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		return out, fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, failed.Stderr)
	}
	return out, err
}

// findPrograms returns the folder that `make kube` fills.
func findPrograms() (string, error) {
	folder := os.Getenv(programsVariable)
	if folder == "" {
		return "", fmt.Errorf("%s must name the folder with kube-apiserver and the other programs; `make kube` builds them and `make test-scheduler` sets it", programsVariable)
	}
	for _, program := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "rowmill-scheduler", "kubectl"} {
		if _, err := os.Stat(filepath.Join(folder, program)); err != nil {
			return "", fmt.Errorf("%s=%s: %w; `make kube` builds the programs", programsVariable, folder, err)
		}
	}
	return filepath.Abs(folder)
}
