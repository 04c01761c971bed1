//! Machines as network namespaces on one bridge, whose links can be cut, also in one direction.
//! Where there are none, all of them are addresses of loopback, which nothing cuts.

use std::collections::BTreeMap;
use std::process::Command;

use weft_testkit::{Process, command, run};

/// A hardware address that nobody has.
const NOWHERE: &str = "02:00:00:00:00:01";

/// How machines reach one another.
pub struct Network {
    has_namespaces: bool,
    hosts: BTreeMap<String, u8>,
}

fn ip(args: &[&str]) -> Command {
    let mut ip = command("ip");
    ip.args(args);
    ip
}

impl Network {
    /// In namespaces that this process was started in, with nothing in them yet; or on loopback.
    pub fn new(has_namespaces: bool) -> Self {
        if has_namespaces {
            run(&mut ip(&["link", "set", "lo", "up"]));
            run(&mut ip(&["link", "add", "br0", "type", "bridge"]));
            run(&mut ip(&["addr", "add", "10.77.0.1/24", "dev", "br0"]));
            run(&mut ip(&["link", "set", "br0", "up"]));
        }
        Self { has_namespaces, hosts: BTreeMap::new() }
    }

    pub fn can_cut(&self) -> bool {
        self.has_namespaces
    }

    /// A machine more.
    pub fn add(&mut self, name: &str) {
        let host = u8::try_from(self.hosts.len() + 10).expect("few machines");
        self.hosts.insert(name.to_owned(), host);
        if !self.has_namespaces {
            return;
        }
        let (link, address) = (format!("v-{name}"), format!("{}/24", self.address(name)));
        run(&mut ip(&["netns", "add", name]));
        run(&mut ip(&[
            "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", name,
        ]));
        run(&mut ip(&["link", "set", &link, "master", "br0", "up"]));
        for args in [
            &["link", "set", "lo", "up"][..],
            &["addr", "add", &address, "dev", "eth0"],
            &["link", "set", "eth0", "up"],
        ] {
            run(&mut ip(&[&["-n", name], args].concat()));
        }
    }

    pub fn address(&self, name: &str) -> String {
        let net = if self.has_namespaces { "10.77.0" } else { "127.77.0" };
        format!("{net}.{}", self.hosts[name])
    }

    /// A program on a machine.
    pub fn command(&self, name: &str, program: &str) -> Command {
        if !self.has_namespaces {
            return command(program);
        }
        let mut enter = command("nsenter");
        enter.arg(format!("--net=/run/netns/{name}")).arg("--").arg(program);
        enter
    }

    /// Cuts a machine off from all others for some seconds.
    pub fn cut(&self, name: &str, seconds: u64) -> Process {
        let link = format!("ip link set v-{name}");
        for_a_while(&format!("{link} down"), &format!("{link} up"), seconds)
    }

    /// What `from` sends to `to` disappears, and the other direction works.
    pub fn cut_one_way(&self, from: &str, to: &str, seconds: u64) -> Process {
        let to = self.address(to);
        let begin =
            format!("ip -n {from} neigh replace {to} lladdr {NOWHERE} dev eth0 nud permanent");
        for_a_while(&begin, &format!("ip -n {from} neigh del {to} dev eth0"), seconds)
    }

    /// What the others send to the machine comes slowly.
    pub fn slow(&self, name: &str, seconds: u64) -> Process {
        let device = format!("dev v-{name} root");
        let begin = format!("tc qdisc replace {device} tbf rate 4mbit burst 32k latency 300ms");
        for_a_while(&begin, &format!("tc qdisc del {device}"), seconds)
    }
}

/// Begins something and ends it again, in a process that is started before: a program that starts
/// closes the files of this one, which may wait for a machine that is in trouble.
fn for_a_while(begin: &str, end: &str, seconds: u64) -> Process {
    let mut shell = command("sh");
    shell.args(["-c", &format!("{begin}; sleep {seconds}; {end}")]);
    Process::spawn(&mut shell)
}
