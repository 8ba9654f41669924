//! The state of a node's LNet: the parameters `nis`, `peers`, `routes`, `routers`, `buffers`,
//! `stats` and `portal_rotor` of `lctl get_param` in Lustre's formats, and the data that `lnetctl`
//! shows.

use crate::counters::{Counters, Counts};
use crate::router::Route;
use crate::router::buffers::RouterBufferInfo;
use crate::tcp::Peer;
use crate::{Lnet, RouteSpec, Tunables, net_name};
use std::fmt::Write;
use std::sync::Arc;
use wire::{LnetCountersCommon, Nid};

/// The state of an interface.
#[derive(Debug, Clone)]
pub struct NiInfo {
    /// Its NID.
    pub nid: Nid,
    /// Its name, if known.
    pub interface: Option<String>,
    /// Its partitions.
    pub cpts: Vec<usize>,
    /// Whether the administrator chose the partitions.
    pub bound: bool,
    /// The first of the partitions near the interface, if its NUMA node is known.
    pub dev_cpt: Option<usize>,
    /// The effective settings; `None` for `0@lo`.
    pub tunables: Option<Tunables>,
    /// Messages and bytes so far.
    pub counts: Counts,
}

/// The state of a peer.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Its NID.
    pub nid: Nid,
    /// `up` or `down` for a router, `NA` for other peers.
    pub state: &'static str,
    /// The partition that it belongs to.
    pub cpt: usize,
    /// Number of connections.
    pub connections: usize,
    /// Number of references to the peer's state in this node.
    pub refs: usize,
    /// This node's credits for messages to the peer.
    pub credits: CreditInfo,
    /// The peer's share of this node's router buffers.
    pub router_credits: CreditInfo,
    /// Messages and bytes so far.
    pub counts: Counts,
}

/// The state of a pool of credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditInfo {
    /// The size of the pool.
    pub max: u32,
    /// The credits left; the negative number of waiting messages if there are none.
    pub left: i64,
    /// The minimum of `left` so far.
    pub left_min: i64,
}

/// The state of a route.
#[derive(Debug, Clone, Copy)]
pub struct RouteInfo {
    /// Destination network and router.
    pub spec: RouteSpec,
    /// Whether the route can be used.
    pub alive: bool,
}

impl Lnet {
    /// All interfaces, `0@lo` first.
    pub fn show_nis(&self) -> Vec<NiInfo> {
        let lo = NiInfo {
            nid: Nid::LO,
            interface: None,
            cpts: (0..self.cpts.len()).collect(),
            bound: false,
            dev_cpt: None,
            tunables: None,
            counts: self.core.nets.lo_counters.iter().map(Counters::snapshot).sum(),
        };
        let nets = self.core.nets.snapshot();
        let tcp_nis = nets.nis.iter().map(|ni| NiInfo {
            nid: ni.nid,
            interface: ni.interface.clone(),
            cpts: ni.cpts.iter().map(|c| c.0).collect(),
            bound: ni.bound,
            dev_cpt: ni.dev_cpt,
            tunables: Some(ni.tunables),
            counts: ni.counts(),
        });
        std::iter::once(lo).chain(tcp_nis).collect()
    }

    /// All peers of which this node keeps state, sorted by NID.
    pub fn show_peers(&self) -> Vec<PeerInfo> {
        let nets = self.core.nets.snapshot();
        let state = |peer: &Peer| match nets.routes.iter().find(|r| r.spec.gateway == peer.nid) {
            Some(route) if route.gateway.is_alive() => "up",
            Some(_) => "down",
            None => "NA",
        };
        let mut peers: Vec<_> = self
            .lnd
            .peers()
            .into_iter()
            .map(|peer| PeerInfo {
                nid: peer.nid,
                state: state(&peer),
                cpt: peer.cpt.0,
                connections: peer.connections(),
                // Without the reference of this list.
                refs: Arc::strong_count(&peer) - 1,
                credits: credit_info(&peer.credits),
                router_credits: credit_info(&peer.router_credits),
                counts: peer.counts(),
            })
            .collect();
        peers.sort_by_key(|peer| peer.nid);
        peers
    }

    /// All routes.
    pub fn show_routes(&self) -> Vec<RouteInfo> {
        let nets = self.core.nets.snapshot();
        nets.routes
            .iter()
            .map(|r| RouteInfo {
                spec: r.spec,
                alive: r.is_alive(),
            })
            .collect()
    }

    /// A router's buffers: the tiny ones of each partition, then the small ones, then the large
    /// ones.
    pub fn show_buffers(&self) -> Vec<RouterBufferInfo> {
        self.buffers.show()
    }

    /// Total counts; the number of messages in flight (being sent or waiting for a credit); and the
    /// sum of each partition's maximum of that number so far.
    pub fn show_counts(&self) -> (Counts, i64, i64) {
        let counts = self.show_nis().iter().map(|ni| ni.counts).sum();
        let nets = self.core.nets.snapshot();
        let credits = nets
            .nis
            .iter()
            .flat_map(|ni| ni.cpts.iter().map(|cpt| ni.credits(*cpt)));
        let in_flight = credits.clone().map(|c| i64::from(c.max()) - c.left()).sum();
        let in_flight_max = credits.map(|c| i64::from(c.max()) - c.left_min()).sum();
        (counts, in_flight, in_flight_max)
    }

    /// The counts of [`Lnet::show_counts`] in the structure of LNet selftest; 32-bit fields wrap
    /// around as in Lustre.
    pub fn counters(&self) -> LnetCountersCommon {
        let (counts, in_flight, in_flight_max) = self.show_counts();
        let sum = |kinds: [u64; 4]| kinds.iter().sum::<u64>() as u32;
        let [sent, received, dropped, routed] = counts.bytes;
        LnetCountersCommon {
            lcc_msgs_alloc: in_flight as u32,
            lcc_msgs_max: in_flight_max as u32,
            lcc_errors: 0,
            lcc_send_count: sum(counts.sent),
            lcc_recv_count: sum(counts.received),
            lcc_route_count: counts.routed as u32,
            lcc_drop_count: sum(counts.dropped),
            lcc_send_length: sent,
            lcc_recv_length: received,
            lcc_route_length: routed,
            lcc_drop_length: dropped,
        }
    }

    /// `nis`: a heading, one line for `0@lo`, and one for each partition of each other interface.
    pub fn nis_table(&self) -> String {
        let mut out = line(
            &[],
            [
                "nid", "status", "alive", "refs", "peer", "rtr", "max", "tx", "min",
            ]
            .map(str::to_owned),
        );
        out += &line(
            &[],
            ["0@lo", "up", "0", "2", "0", "0", "0", "0", "0"].map(str::to_owned),
        );
        let nets = self.core.nets.snapshot();
        let peers = self.lnd.peers();
        for ni in &nets.nis {
            for cpt in &ni.cpts {
                let credits = ni.credits(*cpt);
                let refs = 1 + peers
                    .iter()
                    .filter(|p| Arc::ptr_eq(&p.ni, ni) && p.cpt == *cpt)
                    .count();
                let Tunables {
                    peer_credits,
                    peer_buffer_credits,
                    ..
                } = ni.tunables;
                let columns = [
                    ni.nid.to_string(),
                    "up".to_owned(),
                    "-1".to_owned(),
                    refs.to_string(),
                    peer_credits.to_string(),
                    peer_buffer_credits.to_string(),
                    credits.max().to_string(),
                    credits.left().to_string(),
                    credits.left_min().to_string(),
                ];
                out += &line(&[], columns);
            }
        }
        out
    }

    /// `peers`: the credits and router buffers of each peer.
    pub fn peers_table(&self) -> String {
        let head = ["nid", "refs", "state", "last", "max", "rtr", "min", "tx", "min"].map(str::to_owned);
        let mut out = line(&["queue"], head);
        for peer in self.show_peers() {
            let (tx, rtr) = (peer.credits, peer.router_credits);
            let columns = [
                peer.nid.to_string(),
                peer.refs.to_string(),
                peer.state.to_owned(),
                "-1".to_owned(),
                tx.max.to_string(),
                rtr.left.to_string(),
                rtr.left_min.to_string(),
                tx.left.to_string(),
                tx.left_min.to_string(),
            ];
            let waiting = (-tx.left).max(0).to_string();
            out += &line(&[&waiting], columns);
        }
        out
    }

    /// `routes`: whether this node is a router, and its routes.
    pub fn routes_table(&self) -> String {
        let mut out = match self.forwarding() {
            true => "Routing enabled\n".to_owned(),
            false => "Routing disabled\n".to_owned(),
        };
        let _ = writeln!(
            out,
            "{:<8} {:>4} {:>8} {:>7} router",
            "net", "hops", "priority", "state"
        );
        for route in self.show_routes() {
            let RouteSpec {
                net,
                gateway,
                hop,
                priority,
            } = route.spec;
            let hops = hop.map_or(-1, i64::from);
            let (net, state) = (net_name(net as u16), up_or_down(route.alive));
            let _ = writeln!(out, "{net:<8} {hops:>4} {priority:>8} {state:>7} {gateway}");
        }
        out
    }

    /// `routers`: each router with the number of its routes.
    pub fn routers_table(&self) -> String {
        let mut out = format!("{:<4} {:>7} {:>5} router\n", "ref", "rtr_ref", "alive");
        let nets = self.core.nets.snapshot();
        let mut listed: Vec<Nid> = Vec::new();
        for route in &nets.routes {
            let gateway = route.gateway.nid;
            if listed.contains(&gateway) {
                continue;
            }
            listed.push(gateway);
            let uses_gateway = |r: &&Arc<Route>| r.spec.gateway == gateway;
            let (routes, state) = (
                nets.routes.iter().filter(uses_gateway).count(),
                up_or_down(route.gateway.is_alive()),
            );
            let _ = writeln!(out, "{:<4} {routes:>7} {state:>5} {gateway}", routes + 1);
        }
        out
    }

    /// `buffers`: the tiny, small and large ones of each partition; only the heading if this node
    /// is not a router.
    pub fn buffers_table(&self) -> String {
        let mut out = format!("{:>5} {:>5} {:>7} {:>7}\n", "pages", "count", "credits", "min");
        for row in self.buffers.show().iter().filter(|_| self.forwarding()) {
            let _ = writeln!(
                out,
                "{:>5} {:>5} {:>7} {:>7}",
                row.pages, row.count, row.left, row.left_min
            );
        }
        out
    }

    /// `stats`: messages being sent or waiting for a credit, and their maximum; errors (always 0);
    /// messages sent, received, forwarded, dropped; their bytes.
    pub fn stats_line(&self) -> String {
        let LnetCountersCommon {
            lcc_msgs_alloc,
            lcc_msgs_max,
            lcc_errors,
            lcc_send_count,
            lcc_recv_count,
            lcc_route_count,
            lcc_drop_count,
            lcc_send_length,
            lcc_recv_length,
            lcc_route_length,
            lcc_drop_length,
        } = self.counters();
        format!(
            "{lcc_msgs_alloc} {lcc_msgs_max} {lcc_errors} {lcc_send_count} {lcc_recv_count} {lcc_route_count} \
             {lcc_drop_count} {lcc_send_length} {lcc_recv_length} {lcc_route_length} {lcc_drop_length}\n"
        )
    }

    /// `portal_rotor`: the mode and its description.
    pub fn rotor_text(&self) -> String {
        let mode = self.portal_rotor();
        format!(
            "{{\n\tportals: all\n\trotor: {mode}\n\tdescription: {}\n}}\n",
            mode.about()
        )
    }
}

fn credit_info(credits: &crate::credits::Credits) -> CreditInfo {
    CreditInfo {
        max: credits.max(),
        left: credits.left(),
        left_min: credits.left_min(),
    }
}

fn up_or_down(alive: bool) -> &'static str {
    if alive { "up" } else { "down" }
}

/// Formats a line of `nis` or, if there are `unpadded` columns, of `peers`: these columns follow
/// the others. The widths are Lustre's.
fn line<const N: usize>(unpadded: &[&str], columns: [String; N]) -> String {
    const NID_WIDTH: usize = 24;
    let widths: &[usize] = match unpadded {
        [] => &[6, 5, 4, 4, 4, 5, 5, 5],
        _ => &[4, 5, 5, 5, 5, 5, 5, 5],
    };
    let mut out = String::new();
    for (i, column) in columns.iter().enumerate() {
        let _ = match i.checked_sub(1).and_then(|i| widths.get(i)) {
            None => write!(out, "{column:<NID_WIDTH$}"),
            Some(width) => write!(out, " {column:>width$}"),
        };
    }
    for column in unpadded {
        out = format!("{out} {column}");
    }
    out + "\n"
}
