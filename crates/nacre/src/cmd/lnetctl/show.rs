//! Output of lnetctl's commands that show state, in lnetctl's format, without the fields that Nacre
//! does not have (health, latency samples).

use lnet::{Counts, Lnet, NiInfo, PeerInfo, PingInfo, RouteInfo, net_name};
use wire::Nid;

use super::yaml::{Style, Yaml};

/// `net show`, for one network or all.
pub(super) fn nets(lnet: &Lnet, only: Option<u32>, detail: u8) -> String {
    let nis = lnet.show_nis();
    let mut net_ids: Vec<u32> = Vec::new();
    for ni in nis.iter().filter(|ni| only.is_none_or(|net| ni.nid.net() == net)) {
        if !net_ids.contains(&ni.nid.net()) {
            net_ids.push(ni.nid.net());
        }
    }
    let net = |net: &u32| {
        let nis_of_net = nis.iter().filter(|ni| ni.nid.net() == *net);
        let name = if *net == Nid::LO.net() {
            "lo".to_owned()
        } else {
            net_name(*net as u16)
        };
        let list = nis_of_net.map(|ni| ni_entry(lnet, ni, detail)).collect();
        Yaml::map([("net type", Yaml::text(name)), ("local NI(s)", Yaml::List(list))])
    };
    Yaml::List(net_ids.iter().map(net).collect()).section("net", Style::Wide)
}

fn ni_entry(lnet: &Lnet, ni: &NiInfo, detail: u8) -> Yaml {
    let mut out = Yaml::map([("nid", Yaml::text(ni.nid)), ("status", Yaml::text("up"))]);
    if let Some(name) = &ni.interface {
        out = out.with_entry("interfaces", Yaml::map([("0", Yaml::text(name))]));
    }
    if detail == 0 {
        return out;
    }
    out = statistics(out, &ni.counts, detail);
    if detail >= 3 {
        out = out.with_entry("health stats", health());
    }
    let tunables = ni.tunables.map_or([0; 4], |t| {
        [t.peer_timeout, t.peer_credits, t.peer_buffer_credits, t.credits].map(i64::from)
    });
    let names = ["peer_timeout", "peer_credits", "peer_buffer_credits", "credits"];
    let tunables = names.into_iter().zip(tunables.map(Yaml::text));
    out = out.with_entry("tunables", Yaml::map(tunables));
    if let Some(t) = ni.tunables {
        let timeout = lnet.config().sock_timeout.as_secs() as i64;
        let lnd = [
            ("conns_per_peer", t.conns_per_peer.into()),
            ("timeout", timeout),
            ("tos", -1),
        ];
        out = out.with_entry("lnd tunables", Yaml::numbers(lnd));
    }
    let cpts: Vec<String> = ni.cpts.iter().map(usize::to_string).collect();
    let dev_cpt = ni.dev_cpt.map_or(-1, |cpt| cpt as i64);
    out.with_entry("dev cpt", Yaml::text(dev_cpt))
        .with_entry("CPT", Yaml::text(format!("\"[{}]\"", cpts.join(","))))
}

/// The health of an interface. Nacre's LNet keeps none (`health_sensitivity` is 0), so each
/// interface has the highest value, as in Lustre with this setting.
fn health() -> Yaml {
    Yaml::numbers([
        ("fatal_error", 0),
        ("health value", 1000),
        ("interrupts", 0),
        ("dropped", 0),
        ("aborted", 0),
        ("no route", 0),
        ("timeouts", 0),
        ("error", 0),
    ])
}

fn statistics(out: Yaml, counts: &Counts, detail: u8) -> Yaml {
    let total = |counts_by_type: [u64; 4]| counts_by_type.iter().sum::<u64>() as i64;
    let sums = [
        ("send_count", total(counts.sent)),
        ("recv_count", total(counts.received)),
        ("drop_count", total(counts.dropped)),
    ];
    let out = out.with_entry("statistics", Yaml::numbers(sums));
    if detail < 2 {
        return out;
    }
    let by_type = |[ack, put, get, reply]: [u64; 4]| {
        let [ack, put, get, reply] = [ack, put, get, reply].map(|n| n as i64);
        Yaml::numbers([
            ("put", put),
            ("get", get),
            ("reply", reply),
            ("ack", ack),
            ("hello", 0),
        ])
    };
    out.with_entry("sent_stats", by_type(counts.sent))
        .with_entry("received_stats", by_type(counts.received))
        .with_entry("dropped_stats", by_type(counts.dropped))
}

/// `peer show`, for one peer or all.
pub(super) fn peers(lnet: &Lnet, only: Option<Nid>, detail: u8) -> String {
    let peers = lnet.show_peers();
    let list = peers
        .iter()
        .filter(|p| only.is_none_or(|nid| p.nid == nid))
        .map(|p| peer_entry(p, detail));
    Yaml::List(list.collect()).section("peer", Style::Wide)
}

fn peer_entry(peer: &PeerInfo, detail: u8) -> Yaml {
    let mut ni = Yaml::map([("nid", Yaml::text(peer.nid)), ("state", Yaml::text(peer.state))]);
    if detail > 0 {
        let (tx, rtr) = (peer.credits, peer.router_credits);
        let numbers = [
            ("max_ni_tx_credits", tx.max.into()),
            ("available_tx_credits", tx.left),
            ("min_tx_credits", tx.left_min),
            ("tx_q_num_of_buf", (-tx.left).max(0)),
            ("available_rtr_credits", rtr.left),
            ("min_rtr_credits", rtr.left_min),
            ("refcount", peer.refs as i64),
        ];
        for (name, number) in numbers {
            ni = ni.with_entry(name, Yaml::text(number));
        }
        ni = statistics(ni, &peer.counts, detail);
    }
    Yaml::map([
        ("primary nid", Yaml::text(peer.nid)),
        ("Multi-Rail", Yaml::text(false)),
        ("peer ni", Yaml::List(vec![ni])),
    ])
}

/// `peer list`.
pub(super) fn peer_list(lnet: &Lnet) -> String {
    let list = lnet
        .show_peers()
        .iter()
        .map(|p| Yaml::map([("nid", Yaml::text(p.nid))]))
        .collect();
    Yaml::List(list).section("peer list", Style::Narrow)
}

/// `route show`.
pub(super) fn routes(lnet: &Lnet, net: Option<u32>, gateway: Option<Nid>, detail: u8) -> String {
    let matches = |r: &&RouteInfo| {
        net.is_none_or(|net| r.spec.net == net) && gateway.is_none_or(|nid| r.spec.gateway == nid)
    };
    let route = |r: &RouteInfo| {
        let out = Yaml::map([
            ("net", Yaml::text(net_name(r.spec.net as u16))),
            ("gateway", Yaml::text(r.spec.gateway)),
        ]);
        if detail == 0 {
            return out;
        }
        out.with_entry("hop", Yaml::text(r.spec.hop.map_or(-1, i64::from)))
            .with_entry("priority", Yaml::text(r.spec.priority))
            .with_entry("state", Yaml::text(if r.alive { "up" } else { "down" }))
    };
    let list = lnet.show_routes().iter().filter(matches).map(route).collect();
    Yaml::List(list).section("route", Style::Wide)
}

/// `routing show`: the router buffers of each CPU partition, and the total number of
/// buffers of each size.
pub(super) fn routing(lnet: &Lnet) -> String {
    let buffers = lnet.show_buffers();
    let cpts = lnet.cpts().len();
    let cpt_entry = |cpt: usize| {
        let sizes = ["tiny", "small", "large"]
            .into_iter()
            .zip(buffers.iter().filter(move |b| b.cpt == cpt));
        let pools = sizes.map(|(name, b)| {
            let numbers = [
                ("npages", b.pages.into()),
                ("nbuffers", b.count.into()),
                ("credits", b.left),
                ("mincredits", b.left_min),
            ];
            (name, Yaml::numbers(numbers))
        });
        Yaml::map([(format!("cpt[{cpt}]"), Yaml::map(pools))])
    };
    let enable = Yaml::map([("enable", Yaml::text(u8::from(lnet.forwarding())))]);
    let list = (0..cpts).map(cpt_entry).chain([enable]).collect();
    let total = |pages: u32| {
        buffers
            .iter()
            .filter(|b| b.pages == pages)
            .map(|b| i64::from(b.count))
            .sum()
    };
    let sums = Yaml::numbers([("tiny", total(0)), ("small", total(1)), ("large", total(256))]);
    Yaml::List(list).section("routing", Style::Narrow) + &sums.section("buffers", Style::Narrow)
}

/// `stats show`. Readers of Lustre's output need all its fields, so counters that Nacre's LNet does
/// not keep are 0.
pub(super) fn stats(lnet: &Lnet) -> String {
    let counters = lnet.counters();
    let numbers = [
        ("msgs_alloc", counters.lcc_msgs_alloc.into()),
        ("msgs_max", counters.lcc_msgs_max.into()),
        ("rst_alloc", 0),
        ("errors", counters.lcc_errors.into()),
        ("send_count", counters.lcc_send_count.into()),
        ("resend_count", 0),
        ("response_timeout_count", 0),
        ("local_interrupt_count", 0),
        ("local_dropped_count", 0),
        ("local_aborted_count", 0),
        ("local_no_route_count", 0),
        ("local_timeout_count", 0),
        ("local_error_count", 0),
        ("remote_dropped_count", 0),
        ("remote_error_count", 0),
        ("remote_timeout_count", 0),
        ("network_timeout_count", 0),
        ("recv_count", counters.lcc_recv_count.into()),
        ("route_count", counters.lcc_route_count.into()),
        ("drop_count", counters.lcc_drop_count.into()),
        ("send_length", counters.lcc_send_length as i64),
        ("recv_length", counters.lcc_recv_length as i64),
        ("route_length", counters.lcc_route_length as i64),
        ("drop_length", counters.lcc_drop_length as i64),
    ];
    Yaml::numbers(numbers).section("statistics", Style::Narrow)
}

/// `global show`. Settings that Nacre's LNet does not have are 0, for readers of Lustre's output.
pub(super) fn global(lnet: &Lnet) -> String {
    let config = lnet.config();
    let numbers = [
        ("numa_range", 0),
        ("max_intf", 0),
        ("discovery", 0),
        ("drop_asym_route", 1),
        ("retry_count", config.retry_count.into()),
        ("transaction_timeout", config.transaction_timeout.as_secs() as i64),
        ("health_sensitivity", 0),
        ("recovery_interval", 0),
        ("router_sensitivity", 0),
        ("lnd_timeout", config.sock_timeout.as_secs() as i64),
        ("response_tracking", 0),
        ("recovery_limit", 0),
        ("max_recovery_ping_interval", 0),
    ];
    Yaml::numbers(numbers).section("global", Style::Narrow)
}

/// `export`: the input of `import`, and sections that `import` ignores.
pub(super) fn export(lnet: &Lnet) -> String {
    let parts = [
        nets(lnet, None, 2),
        routes(lnet, None, None, 1),
        routing(lnet),
        peers(lnet, None, 2),
        global(lnet),
    ];
    // Omit a section without entries.
    parts
        .into_iter()
        .filter(|part| part.lines().count() > 1)
        .collect()
}

/// `ping` and `discover`: the NIDs of the nodes, from their answers.
pub(super) fn pings(answers: &[PingInfo], discover: bool) -> String {
    let peer = |info: &PingInfo| {
        let nids: Vec<Nid> = info
            .nis
            .iter()
            .map(|ni| ni.ns_nid)
            .filter(|nid| !nid.is_lo())
            .collect();
        let multi_rail = info.features & wire::LNET_PING_FEAT_MULTI_RAIL != 0;
        Yaml::map([
            (
                "primary nid",
                Yaml::text(nids.first().copied().unwrap_or(Nid::LO)),
            ),
            (
                "Multi-Rail",
                Yaml::text(if multi_rail { "True" } else { "False" }),
            ),
            (
                "peer ni",
                Yaml::List(
                    nids.iter()
                        .map(|nid| Yaml::map([("nid", Yaml::text(nid))]))
                        .collect(),
                ),
            ),
        ])
    };
    let name = if discover { "discover" } else { "ping" };
    Yaml::List(answers.iter().map(peer).collect()).section(name, Style::Narrow)
}

/// `cpt-of-nid`.
pub(super) fn cpt_of_nids(lnet: &Lnet, nids: &[Nid]) -> String {
    let entry = |nid: &Nid| Yaml::map([("nid", Yaml::text(nid)), ("cpt", Yaml::text(lnet.cpt_of(*nid).0))]);
    Yaml::List(nids.iter().map(entry).collect()).section("cpt-of-nid", Style::Narrow)
}
