//! Operations that `lnetctl` requests of a running process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use lnet::{IfSpec, Lnet, NetSpec, NiSpec, RouteSpec};
use serde::{Deserialize, Serialize};
use wire::Nid;

use super::show;

/// Maximum number of a router's buffers of one size.
const ROUTER_BUFFERS_MAX: u32 = 1 << 20;

/// Parameters of a new network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NiParams {
    /// The network; not needed with a NID.
    pub(super) net: Option<String>,
    /// Names or addresses of interfaces; not used with a NID.
    pub(super) interfaces: Vec<String>,
    pub(super) nid: Option<String>,
    /// CPU partitions, such as `[0,1]`.
    pub(super) cpt: Option<String>,
    /// Seconds; shown by `net show`, without other effect.
    pub(super) peer_timeout: Option<u32>,
    pub(super) peer_credits: Option<u32>,
    pub(super) peer_buffer_credits: Option<u32>,
    pub(super) credits: Option<u32>,
    pub(super) conns_per_peer: Option<u32>,
}

/// A numeric setting of `lnetctl set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Setting {
    /// A router's buffers for messages without payload
    TinyBuffers,
    /// A router's buffers for payloads up to 4 KiB
    SmallBuffers,
    /// A router's buffers for larger payloads
    LargeBuffers,
    /// 1: forward messages between networks, as a router
    Routing,
    /// Only 0: this node does not discover several NIDs as one peer
    Discovery,
    /// Only 1: this node drops messages that do not come through the route to their sender
    DropAsymRoute,
    /// Cannot be changed at run time; accepts only the current value
    RetryCount,
    /// Cannot be changed at run time; accepts only the current value
    TransactionTimeout,
}

impl Setting {
    /// The value of a setting that a running process cannot change, and the remedy or reason;
    /// `None` for other settings.
    fn fixed_value(self, lnet: &Lnet) -> Option<(u64, &'static str)> {
        let config = lnet.config();
        Some(match self {
            Setting::Discovery => (0, "Nacre's LNet has no other value"),
            Setting::DropAsymRoute => (1, "Nacre's LNet has no other value"),
            Setting::RetryCount => (
                config.retry_count.into(),
                "start the process with --param lnet_retry_count=N",
            ),
            Setting::TransactionTimeout => (
                config.transaction_timeout.as_secs(),
                "start the process with --param lnet_transaction_timeout=SECONDS",
            ),
            _ => return None,
        })
    }
}

/// One operation of `lnetctl`. `detail` is the level of detail, 0 to 2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Op {
    NetShow {
        net: Option<String>,
        detail: u8,
    },
    NetAdd(NiParams),
    NetDel {
        net: Option<String>,
        nid: Option<String>,
        interfaces: Vec<String>,
    },
    RouteShow {
        net: Option<String>,
        gateway: Option<String>,
        detail: u8,
    },
    RouteAdd {
        net: String,
        gateway: String,
        hop: Option<u32>,
        priority: u32,
    },
    RouteDel {
        net: String,
        gateway: String,
    },
    RoutingShow,
    Set {
        what: Setting,
        value: u32,
    },
    PeerShow {
        nid: Option<String>,
        detail: u8,
    },
    PeerList,
    PeerAdd {
        primary: String,
        nids: Vec<String>,
    },
    PeerDel {
        primary: String,
        nids: Vec<String>,
    },
    StatsShow,
    GlobalShow,
    Ping {
        nids: Vec<String>,
        timeout_s: u64,
        discover: bool,
    },
    CptOfNid {
        nids: Vec<String>,
    },
    Export,
}

impl Op {
    /// Whether the operation changes the configuration, so that only root and the owner of the
    /// process may request it.
    pub(crate) fn changes_configuration(&self) -> bool {
        use Op::{NetAdd, NetDel, PeerAdd, PeerDel, RouteAdd, RouteDel, Set};
        let changes_nets = matches!(
            self,
            NetAdd(_) | NetDel { .. } | RouteAdd { .. } | RouteDel { .. }
        );
        changes_nets || matches!(self, PeerAdd { .. } | PeerDel { .. } | Set { .. })
    }

    /// Performs the operation and returns the text to print; empty after a change.
    pub(crate) async fn perform(self, lnet: &Arc<Lnet>) -> Result<String> {
        match self {
            Op::NetShow { net, detail } => {
                Ok(show::nets(lnet, net.as_deref().map(net_id).transpose()?, detail))
            }
            Op::PeerShow { nid, detail } => Ok(show::peers(
                lnet,
                nid.as_deref().map(parse_nid).transpose()?,
                detail,
            )),
            Op::PeerList => Ok(show::peer_list(lnet)),
            Op::RouteShow { net, gateway, detail } => {
                let net = net.as_deref().map(net_id).transpose()?;
                Ok(show::routes(
                    lnet,
                    net,
                    gateway.as_deref().map(parse_nid).transpose()?,
                    detail,
                ))
            }
            Op::RoutingShow => Ok(show::routing(lnet)),
            Op::StatsShow => Ok(show::stats(lnet)),
            Op::GlobalShow => Ok(show::global(lnet)),
            Op::Export => Ok(show::export(lnet)),
            Op::Ping {
                nids,
                timeout_s,
                discover,
            } => ping(lnet, &nids, timeout_s, discover).await,
            Op::CptOfNid { nids } => {
                let nids = nids
                    .iter()
                    .map(|nid| parse_nid(nid))
                    .collect::<Result<Vec<_>>>()?;
                Ok(show::cpt_of_nids(lnet, &nids))
            }
            change => change.apply(lnet).map(|()| String::new()),
        }
    }

    /// Performs an operation that changes the configuration.
    fn apply(self, lnet: &Arc<Lnet>) -> Result<()> {
        match self {
            Op::NetAdd(ni) => {
                for spec in ni.specs()? {
                    lnet.add_ni(&spec)?;
                }
            }
            Op::NetDel { net, nid, interfaces } => {
                let net = net.as_deref().map(net_id).transpose()?;
                let nid = nid.as_deref().map(parse_nid).transpose()?;
                if net.is_none() && nid.is_none() {
                    bail!("set the network with --net, or the interface with --nid");
                }
                let matches = |ni: &lnet::NiInfo| {
                    let interface_matches = ni.interface.as_ref().is_some_and(|i| interfaces.contains(i));
                    ni.tunables.is_some()
                        && net.is_none_or(|net| ni.nid.net() == net)
                        && nid.is_none_or(|nid| ni.nid == nid)
                        && (interfaces.is_empty() || interface_matches)
                };
                let nids: Vec<Nid> = lnet
                    .show_nis()
                    .iter()
                    .filter(|ni| matches(ni))
                    .map(|ni| ni.nid)
                    .collect();
                if nids.is_empty() {
                    bail!("this node has no such network or interface");
                }
                for nid in nids {
                    lnet.del_ni(nid)?;
                }
            }
            Op::RouteAdd {
                net,
                gateway,
                hop,
                priority,
            } => {
                let (net, gateway) = (net_id(&net)?, parse_nid(&gateway)?);
                lnet::check_gateway(net, gateway).map_err(|why| anyhow!(why))?;
                lnet.add_route(RouteSpec {
                    net,
                    gateway,
                    hop,
                    priority,
                })?;
            }
            // Only check the NIDs: LNet adds a peer itself, at its first message.
            Op::PeerAdd { primary, nids } => drop(peer_nid(&primary, &nids)?),
            Op::PeerDel { primary, nids } => lnet.del_peer(peer_nid(&primary, &nids)?),
            Op::RouteDel { net, gateway } => lnet.del_route(net_id(&net)?, parse_nid(&gateway)?)?,
            Op::Set { what, value } => {
                if let Some((present, remedy)) = what.fixed_value(lnet) {
                    if u64::from(value) != present {
                        bail!("the setting is {present} and cannot be {value} in this process: {remedy}");
                    }
                    return Ok(());
                }
                let mut buffers = lnet.router_buffers();
                match what {
                    Setting::Routing if value > 1 => bail!("routing must be 0 or 1, not {value}"),
                    Setting::Routing => lnet.set_forwarding(value == 1),
                    _ if value == 0 || value > ROUTER_BUFFERS_MAX => {
                        bail!("a router needs from 1 to {ROUTER_BUFFERS_MAX} buffers, not {value}")
                    }
                    Setting::TinyBuffers => buffers[0] = value,
                    Setting::SmallBuffers => buffers[1] = value,
                    Setting::LargeBuffers => buffers[2] = value,
                    // Fixed settings returned above.
                    _ => {}
                }
                lnet.set_router_buffers(buffers);
            }
            _ => {}
        }
        Ok(())
    }
}

impl NiParams {
    /// The interfaces to add.
    fn specs(&self) -> Result<Vec<NiSpec>> {
        let cpts = self.cpt.as_deref().map(cpt_list).transpose()?;
        let specs = match (&self.nid, &self.net) {
            (Some(nid), _) => vec![NiSpec::new(parse_nid(nid)?)],
            (None, Some(net)) => {
                let number = lnet::parse_net_name(net).map_err(|why| anyhow!(why))?;
                let interface = |name: &String| IfSpec {
                    name: name.clone(),
                    cpts: None,
                };
                let interfaces = self.interfaces.iter().map(interface).collect();
                lnet::resolve(&[NetSpec {
                    number,
                    interfaces,
                    cpts: None,
                }])?
            }
            (None, None) => bail!("set the network with --net, or the NID with --nid"),
        };
        let with_settings = |spec: NiSpec| NiSpec {
            cpts: cpts.clone(),
            peer_timeout: self.peer_timeout,
            peer_credits: self.peer_credits,
            peer_buffer_credits: self.peer_buffer_credits,
            credits: self.credits,
            conns_per_peer: self.conns_per_peer,
            ..spec
        };
        Ok(specs.into_iter().map(with_settings).collect())
    }
}

/// Parses `[0,1]`, with or without brackets.
fn cpt_list(text: &str) -> Result<Vec<usize>> {
    let list = text.trim().trim_start_matches('[').trim_end_matches(']');
    lnet::parse_cpt_list(list).map_err(|why| anyhow!("CPU partitions '{text}': {why}"))
}

/// The network with this name, as in [`Nid::net`].
fn net_id(name: &str) -> Result<u32> {
    if name == "lo" {
        return Ok(Nid::LO.net());
    }
    let number = lnet::parse_net_name(name).map_err(|why| anyhow!(why))?;
    Ok(Nid::tcp(std::net::Ipv4Addr::UNSPECIFIED, number).net())
}

/// The NID of a peer; fails if `nids` has another one.
fn peer_nid(primary: &str, nids: &[String]) -> Result<Nid> {
    let primary = parse_nid(primary)?;
    for nid in nids {
        if parse_nid(nid)? != primary {
            bail!(
                "peer {primary} cannot also have the NID {nid}: a peer of Nacre has one NID; name each peer by its own"
            );
        }
    }
    Ok(primary)
}

fn parse_nid(text: &str) -> Result<Nid> {
    text.parse().with_context(|| format!("cannot parse NID '{text}'"))
}

/// Pings the nodes one after the other; fails at the first node without an answer.
async fn ping(lnet: &Arc<Lnet>, nids: &[String], timeout_s: u64, discover: bool) -> Result<String> {
    let mut answers = Vec::new();
    for text in nids {
        let nid = parse_nid(text)?;
        answers.push(lnet.ping(nid, Duration::from_secs(timeout_s)).await?);
    }
    Ok(show::pings(&answers, discover))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{NiParams, net_id};

    #[test]
    fn interface_is_added_by_nid_or_by_network() {
        let by_nid = NiParams {
            nid: Some("127.0.0.9@tcp3".into()),
            cpt: Some("[0,1]".into()),
            credits: Some(64),
            ..NiParams::default()
        };
        let specs = by_nid.specs().unwrap();
        assert_eq!(
            (specs.len(), specs[0].nid.to_string().as_str()),
            (1, "127.0.0.9@tcp3")
        );
        assert_eq!(
            (specs[0].cpts.clone(), specs[0].credits),
            (Some(vec![0, 1]), Some(64))
        );
        let by_net = NiParams {
            net: Some("tcp1".into()),
            interfaces: vec!["lo".into()],
            ..NiParams::default()
        };
        assert_eq!(by_net.specs().unwrap()[0].nid.to_string(), "127.0.0.1@tcp1");
        assert!(NiParams::default().specs().is_err());
        assert!(net_id("o2ib").unwrap_err().to_string().contains("only tcp"));
    }
}
