package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// peer is one thing that stands between the load and the mock. Every peer has
// its own default number of threads, which is the number of cores.
type peer struct {
	name    string
	version string
	// command starts it on addr in front of the engine, with dir for its files.
	command func(addr, engine, dir string) (*exec.Cmd, error)
}

// Names of the peers the ratios are about.
const (
	nameDirect    = "direct"
	nameRelay     = "relay"
	nameNginx     = "nginx"
	nameHAProxy   = "haproxy"
	nameCaddy     = "caddy"
	nameGateway   = "firsttoken"
	nameGatewayVL = "ft+vllm"
)

// fairness says how the peers are set up; it is printed with the figures.
const fairness = `relay       http.Transport, request body read first, one flush a read; no log
nginx       worker_processes auto, access_log off, proxy_buffering off, keep-alive upstream
haproxy     threads by default (all cores), option http-no-delay, no log
caddy       flush_interval -1, admin off, no access log, 256 idle connections upstream
firsttoken  as shipped: access log to a file, metrics, metering, health probes; one generic backend
ft+vllm     the same with an engine of kind vllm: its 50 KB of metrics read every 300 ms, usage asked for and hidden`

// peers lists what can run here; skipped says why the others can't.
func peers(gateway, caddy string) (all []peer, skipped []string) {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	all = []peer{{name: nameDirect}, {name: nameRelay, command: func(addr, engine, _ string) (*exec.Cmd, error) {
		return exec.Command(self, "relay", "-listen", addr, "-to", engine), nil
	}}}
	for _, p := range []struct {
		name, binary string
		version      []string
		command      func(binary string) func(addr, engine, dir string) (*exec.Cmd, error)
	}{
		{nameNginx, "nginx", []string{"-v"}, nginx},
		{nameHAProxy, "haproxy", []string{"-v"}, haproxy},
		{nameCaddy, caddy, []string{"version"}, caddyServer},
		{nameGateway, gateway, []string{"version"}, firsttoken("generic")},
		{nameGatewayVL, gateway, []string{"version"}, firsttoken("vllm")},
	} {
		binary, err := exec.LookPath(p.binary)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("%s: %v", p.name, err))
			continue
		}
		all = append(all, peer{name: p.name, version: versionOf(binary, p.version...), command: p.command(binary)})
	}
	return all, skipped
}

func versionOf(binary string, args ...string) string {
	out, err := exec.Command(binary, args...).CombinedOutput()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	line = strings.TrimPrefix(line, "nginx version: nginx/")
	line = strings.TrimPrefix(line, "HAProxy version ")
	line, _, _ = strings.Cut(strings.TrimSpace(line), " ")
	line, _, _ = strings.Cut(line, "-") // the distribution's part
	return line
}

func nginx(binary string) func(addr, engine, dir string) (*exec.Cmd, error) {
	return func(addr, engine, dir string) (*exec.Cmd, error) {
		file, err := writeFile(dir, "nginx.conf", fmt.Sprintf(`
daemon off;
worker_processes auto;
worker_rlimit_nofile 16384;
pid %[3]s/nginx.pid;
events { worker_connections 8192; }
http {
    access_log off;
    client_body_temp_path %[3]s/body;
    proxy_temp_path %[3]s/proxy;
    fastcgi_temp_path %[3]s/fastcgi;
    uwsgi_temp_path %[3]s/uwsgi;
    scgi_temp_path %[3]s/scgi;
    upstream engine { server %[2]s; keepalive 256; keepalive_requests 100000000; }
    server {
        listen %[1]s;
        keepalive_requests 100000000;
        location / {
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }
    }
}
`, addr, engine, dir))
		return exec.Command(binary, "-p", dir, "-c", file, "-e", "stderr"), err
	}
}

func haproxy(binary string) func(addr, engine, dir string) (*exec.Cmd, error) {
	return func(addr, engine, dir string) (*exec.Cmd, error) {
		file, err := writeFile(dir, "haproxy.cfg", fmt.Sprintf(`
global
    maxconn 5000
defaults
    mode http
    option http-no-delay
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind %s
    default_backend engine
backend engine
    server engine %s
`, addr, engine))
		return exec.Command(binary, "-db", "-f", file), err
	}
}

func caddyServer(binary string) func(addr, engine, dir string) (*exec.Cmd, error) {
	return func(addr, engine, dir string) (*exec.Cmd, error) {
		_, port, _ := net.SplitHostPort(addr)
		file, err := writeFile(dir, "Caddyfile", fmt.Sprintf(`
{
	admin off
	auto_https off
	persist_config off
	log {
		level ERROR
	}
}
http://:%s {
	bind 127.0.0.1
	reverse_proxy %s {
		flush_interval -1
		transport http {
			keepalive_idle_conns_per_host 256
		}
	}
}
`, port, engine))
		cmd := exec.Command(binary, "run", "--adapter", "caddyfile", "--config", file)
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
		return cmd, err
	}
}

func firsttoken(kind string) func(binary string) func(addr, engine, dir string) (*exec.Cmd, error) {
	return func(binary string) func(addr, engine, dir string) (*exec.Cmd, error) {
		return func(addr, engine, dir string) (*exec.Cmd, error) {
			file, err := writeFile(dir, "firsttoken.yaml", fmt.Sprintf(`
server: {listen: %q}
telemetry: {listen: "127.0.0.1:0"}
drain: {accept: off}
models:
  - name: bench
    backends:
      - {name: mock, url: "http://%s", engine: %s}
`, addr, engine, kind))
			return exec.Command(binary, "serve", "--config", file), err
		}
	}
}

func writeFile(dir, name, text string) (string, error) {
	file := filepath.Join(dir, name)
	return file, os.WriteFile(file, []byte(text), 0o644)
}

// instance is a peer, or the mock, that runs.
type instance struct {
	name, addr string
	pids       processes
	cmd        *exec.Cmd
	ended      chan struct{}
}

// start runs a peer in front of the engine and waits until it serves. Its
// output goes to a file in dir.
func (p peer) start(ctx context.Context, engine, dir string) (*instance, error) {
	if p.command == nil {
		return &instance{name: p.name, addr: engine}, nil
	}
	dir, err := os.MkdirTemp(dir, p.name+"-")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	cmd, err := p.command(addr, engine, dir)
	if err != nil {
		return nil, err
	}
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the bench, which stops its peers
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	in := &instance{name: p.name, addr: addr, cmd: cmd, ended: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(in.ended) }()
	if err := in.ready(ctx); err != nil {
		in.stop()
		text, _ := os.ReadFile(output.Name())
		return nil, fmt.Errorf("%s does not serve: %w; it said:\n%s", p.name, err, text)
	}
	in.pids = family(cmd.Process.Pid)
	return in, nil
}

// freeAddr is an address that nobody listens at right now.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

func (in *instance) ready(ctx context.Context) error {
	var err error
	for range 200 {
		c := newClient(in.addr, stream)
		_, _, err = c.do()
		c.close()
		if err == nil {
			return nil
		}
		select {
		case <-in.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return err
}

// stop ends the instance and waits for it.
func (in *instance) stop() {
	if in.cmd == nil {
		return
	}
	_ = in.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-in.ended:
	case <-time.After(5 * time.Second):
		_ = in.cmd.Process.Kill()
		<-in.ended
	}
}
