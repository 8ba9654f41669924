//! Parses a configuration in the format of `lnetctl import` and `export` into operations.

use anyhow::{Context, Result, bail};
use saphyr::{LoadableYamlNode, Yaml};

use super::op::{NiParams, Op, Setting};

/// Sections of an export that `import` ignores: state, and settings that a running process cannot
/// change.
const IGNORED_SECTIONS: [&str; 4] = ["peer", "global", "statistics", "numa"];

/// The operations that add a configuration, or with `delete` remove it.
pub(super) fn parse(text: &str, delete: bool) -> Result<Vec<Op>> {
    let documents = Yaml::load_from_str(text).context("the configuration is not valid YAML")?;
    let mut ops = Vec::new();
    for document in &documents {
        let sections = document
            .as_mapping()
            .context("the configuration has no sections such as net:")?;
        for (name, value) in sections {
            match name.as_str().unwrap_or_default() {
                "net" => items(value).try_for_each(|net| parse_net(net, delete, &mut ops)),
                "route" => items(value).try_for_each(|route| parse_route(route, delete, &mut ops)),
                "routing" => items(value).try_for_each(|routing| parse_routing(routing, delete, &mut ops)),
                "buffers" => parse_routing(value, delete, &mut ops),
                known if IGNORED_SECTIONS.contains(&known) => Ok(()),
                other => bail!("section '{other}' is not supported: expected net, route, routing or buffers"),
            }?;
        }
    }
    // A route needs the network of its router: add it after the networks, remove it before them.
    ops.sort_by_key(|op| match op {
        Op::NetAdd(_) => -1,
        Op::NetDel { .. } => 1,
        _ => 0,
    });
    Ok(ops)
}

/// The items of a list; a single value counts as a list of one.
fn items<'a, 'b>(value: &'a Yaml<'b>) -> impl Iterator<Item = &'a Yaml<'b>> {
    match value.as_sequence() {
        Some(list) => list.iter(),
        None if value.is_null() => [].iter(),
        None => std::slice::from_ref(value).iter(),
    }
}

/// The string or integer with this key, as text.
fn text(mapping: &Yaml<'_>, key: &str) -> Option<String> {
    let value = mapping.as_mapping_get(key)?;
    value
        .as_str()
        .map(str::to_owned)
        .or_else(|| value.as_integer().map(|n| n.to_string()))
}

fn number(mapping: &Yaml<'_>, key: &str) -> Result<Option<u32>> {
    let Some(value) = mapping.as_mapping_get(key) else {
        return Ok(None);
    };
    let n = value.as_integer().and_then(|n| u32::try_from(n).ok());
    n.map(Some)
        .with_context(|| format!("{key} is not a number (0 or greater)"))
}

fn parse_net(net: &Yaml<'_>, delete: bool, ops: &mut Vec<Op>) -> Result<()> {
    let name = text(net, "net type")
        .or_else(|| text(net, "net"))
        .context("a network has no 'net type'")?;
    if name == "lo" {
        return Ok(());
    }
    let Some(nis) = net.as_mapping_get("local NI(s)") else {
        let default_ni = NiParams {
            net: Some(name.clone()),
            ..NiParams::default()
        };
        ops.push(match delete {
            true => Op::NetDel {
                net: Some(name),
                nid: None,
                interfaces: Vec::new(),
            },
            false => Op::NetAdd(default_ni),
        });
        return Ok(());
    };
    for ni in items(nis) {
        let interfaces = ni.as_mapping_get("interfaces").and_then(Yaml::as_mapping);
        let interfaces: Vec<String> = interfaces
            .map(|list| {
                list.values()
                    .filter_map(Yaml::as_str)
                    .map(str::to_owned)
                    .collect()
            })
            .unwrap_or_default();
        let nid = text(ni, "nid");
        if delete {
            ops.push(Op::NetDel {
                net: Some(name.clone()),
                nid,
                interfaces,
            });
            continue;
        }
        let empty = Yaml::Mapping(Default::default());
        let tunables = ni.as_mapping_get("tunables").unwrap_or(&empty);
        let lnd = ni.as_mapping_get("lnd tunables").unwrap_or(&empty);
        ops.push(Op::NetAdd(NiParams {
            net: Some(name.clone()),
            // The NID identifies the interface, even if the NID is not the interface's first
            // address.
            interfaces: if nid.is_some() { Vec::new() } else { interfaces },
            nid,
            cpt: text(ni, "CPT"),
            peer_timeout: number(tunables, "peer_timeout")?,
            peer_credits: number(tunables, "peer_credits")?,
            peer_buffer_credits: number(tunables, "peer_buffer_credits")?,
            credits: number(tunables, "credits")?,
            conns_per_peer: number(lnd, "conns_per_peer")?,
        }));
    }
    Ok(())
}

fn parse_route(route: &Yaml<'_>, delete: bool, ops: &mut Vec<Op>) -> Result<()> {
    let net = text(route, "net").context("a route has no net")?;
    let gateway = text(route, "gateway").with_context(|| format!("the route to {net} has no gateway"))?;
    let hop = route
        .as_mapping_get("hop")
        .and_then(Yaml::as_integer)
        .filter(|hop| *hop > 0);
    ops.push(match delete {
        true => Op::RouteDel { net, gateway },
        false => Op::RouteAdd {
            net,
            gateway,
            hop: hop
                .map(|hop| lnet::parse_hops(&hop.to_string()))
                .transpose()
                .map_err(anyhow::Error::msg)?,
            priority: number(route, "priority")?.unwrap_or(0),
        },
    });
    Ok(())
}

fn parse_routing(routing: &Yaml<'_>, delete: bool, ops: &mut Vec<Op>) -> Result<()> {
    if delete {
        return Ok(());
    }
    let settings = [
        ("tiny", Setting::TinyBuffers),
        ("small", Setting::SmallBuffers),
        ("large", Setting::LargeBuffers),
        ("enable", Setting::Routing),
    ];
    for (key, setting) in settings {
        if let Some(value) = number(routing, key)? {
            ops.push(Op::Set { what: setting, value });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{NiParams, Op, Setting, parse};

    const CONFIGURATION: &str = "\
net:
-     net type: lo
      local NI(s):
      -     nid: 0@lo
            status: up
-     net type: tcp
      local NI(s):
      -     nid: 10.88.0.11@tcp
            status: up
            interfaces:
                  0: eth0
            tunables:
                  peer_timeout: 180
                  peer_credits: 8
                  peer_buffer_credits: 0
                  credits: 256
            lnd tunables:
                  conns_per_peer: 1
                  timeout: 50
            CPT: \"[0]\"
-     net type: tcp1
      local NI(s):
        - interfaces:
              0: eth1
route:
    - net: tcp2
      gateway: 10.88.0.1@tcp
      hop: -1
      priority: 3
routing:
    - cpt[0]:
          tiny:
              npages: 0
    - enable: 1
buffers:
    tiny: 2048
global:
    retry_count: 2
";

    #[test]
    fn configuration_is_parsed_for_adding_and_removing() {
        let ni_by_nid = NiParams {
            net: Some("tcp".into()),
            nid: Some("10.88.0.11@tcp".into()),
            cpt: Some("[0]".into()),
            peer_timeout: Some(180),
            peer_credits: Some(8),
            peer_buffer_credits: Some(0),
            credits: Some(256),
            conns_per_peer: Some(1),
            ..NiParams::default()
        };
        let ni_by_interface = NiParams {
            net: Some("tcp1".into()),
            interfaces: vec!["eth1".into()],
            ..NiParams::default()
        };
        let (net, gateway) = ("tcp2".to_owned(), "10.88.0.1@tcp".to_owned());
        let expected = [
            Op::NetAdd(ni_by_nid),
            Op::NetAdd(ni_by_interface),
            Op::RouteAdd {
                net: net.clone(),
                gateway: gateway.clone(),
                hop: None,
                priority: 3,
            },
            Op::Set {
                what: Setting::Routing,
                value: 1,
            },
            Op::Set {
                what: Setting::TinyBuffers,
                value: 2048,
            },
        ];
        assert_eq!(parse(CONFIGURATION, false).unwrap(), expected);
        let removals = parse(CONFIGURATION, true).unwrap();
        assert_eq!(removals[0], Op::RouteDel { net, gateway });
        assert_eq!(removals.len(), 3);
    }

    #[test]
    fn routes_follow_the_networks_of_their_routers() {
        let text = "\
route:
    - net: tcp2
      gateway: 10.88.0.1@tcp1
net:
    - net type: tcp1
      local NI(s):
        - nid: 10.88.0.11@tcp1
";
        let added = parse(text, false).unwrap();
        assert!(
            matches!(added[..], [Op::NetAdd(_), Op::RouteAdd { .. }]),
            "{added:?}"
        );
        let removed = parse(text, true).unwrap();
        assert!(
            matches!(removed[..], [Op::RouteDel { .. }, Op::NetDel { .. }]),
            "{removed:?}"
        );
    }

    #[test]
    fn error_names_the_invalid_part_of_a_configuration() {
        for (text, expected) in [
            ("udsp:\n  - x: 1\n", "'udsp' is not supported"),
            ("- 1\n", "no sections"),
            ("net: [", "not valid YAML"),
            ("net:\n  - nid: x\n", "'net type'"),
            ("route:\n  - net: tcp1\n", "has no gateway"),
            ("buffers:\n  tiny: many\n", "tiny is not a number"),
        ] {
            let error = format!("{:#}", parse(text, false).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
