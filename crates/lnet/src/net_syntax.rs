//! The syntax of `networks=` and `routes=` (docs/protocol.md, "LNet"): the networks of a node with
//! their interfaces and partitions, and the routers to other networks. Pure functions.
//!
//! ```text
//! networks = NET[,NET...]              tcp1(eth0[0],eth1)[0,1],tcp(eth2)
//! NET      = tcp[NUMBER][(IF[CPTS],...)][CPTS]    CPTS of an interface override those of NET
//! routes   = ROUTE[;ROUTE...]          tcp1 2 192.168.0.[1-4]@tcp:5; tcp[2,3] 10.0.0.1@tcp
//!            (or with line breaks instead of semicolons)
//! ROUTE    = NET [HOPS] GATEWAY[:PRIORITY]...
//!            (NET is tcp[NUMBER]; NET and GATEWAY may contain lists of numbers such as [1-4])
//! ```

use crate::LnetError;
use wire::Nid;

/// One network of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetSpec {
    /// The network's number: 1 in `tcp1`.
    pub number: u16,
    /// Its interfaces, by name or address. If empty, the first interface except the loopback.
    pub interfaces: Vec<IfSpec>,
    /// The partitions of the interfaces that do not list their own.
    pub cpts: Option<Vec<usize>>,
}

/// One interface of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IfSpec {
    /// The interface's name, or one of its addresses.
    pub name: String,
    /// Its partitions; `None` if the interface lists none of its own.
    pub cpts: Option<Vec<usize>>,
}

/// A route to another network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSpec {
    /// The destination network, in the encoding of [`Nid::net`].
    pub net: u32,
    /// The router, on a network of this node.
    pub gateway: Nid,
    /// The number of hops from 1 to 255, if given.
    pub hop: Option<u32>,
    /// Lower numbers are preferred.
    pub priority: u32,
}

/// Maximum number of interfaces, and of networks, in one setting: a ping reply lists them all.
const INTERFACES_MAX: usize = 128;
/// Maximum number of routes in one setting, and of words that one word expands to.
const ROUTES_MAX: usize = 1024;
/// Maximum number of hops.
const HOPS_MAX: u32 = 255;
/// Maximum length of the name of an interface, in bytes.
const INTERFACE_NAME_MAX: usize = 64;

/// Parses `networks=`.
///
/// # Errors
///
/// The text is malformed; the error explains the mistake.
pub fn parse_networks(text: &str) -> Result<Vec<NetSpec>, LnetError> {
    let config_error = |why: String| LnetError::Config {
        what: "networks",
        text: text.to_owned(),
        why,
    };
    let mut nets: Vec<NetSpec> = Vec::new();
    for part in split_outside_brackets(text, ',').map_err(config_error)? {
        if part.is_empty() {
            return Err(config_error(
                "expected a network such as tcp(eth0) between the commas".into(),
            ));
        }
        let net = parse_net(part).map_err(config_error)?;
        if nets.iter().any(|n| n.number == net.number) {
            let name = net_name(net.number);
            return Err(config_error(format!(
                "{name} is named twice: list its interfaces together, as in {name}(eth0,eth1)"
            )));
        }
        nets.push(net);
    }
    let interfaces: usize = nets.iter().map(|n| n.interfaces.len()).sum();
    if interfaces > INTERFACES_MAX || nets.len() > INTERFACES_MAX {
        return Err(config_error(format!("more than {INTERFACES_MAX} interfaces")));
    }
    Ok(nets)
}

/// The name of a network: `tcp` for 0, `tcp1` for 1.
pub fn net_name(number: u16) -> String {
    match number {
        0 => "tcp".to_owned(),
        n => format!("tcp{n}"),
    }
}

/// The number in a network name: 1 for `tcp1`.
///
/// # Errors
///
/// The name is malformed, or of another kind of network.
pub fn parse_net_name(name: &str) -> Result<u16, String> {
    let digits = name.strip_prefix("tcp").ok_or_else(|| match name {
        "" => "a network needs a name such as tcp or tcp1".to_owned(),
        "lo" => "lo always exists and must not be listed".to_owned(),
        other => format!("{other} is not supported: only tcp networks such as tcp or tcp1 are"),
    })?;
    match digits {
        "" => Ok(0),
        _ if digits.bytes().all(|b| b.is_ascii_digit()) => digits
            .parse()
            .map_err(|_| format!("{name}: the number of a network is at most {}", u16::MAX)),
        _ => Err(format!(
            "{name} is not a network: expected tcp or tcp with a number"
        )),
    }
}

fn parse_net(part: &str) -> Result<NetSpec, String> {
    let (name, rest) = match part.find(['(', '[']) {
        Some(index) => part.split_at(index),
        None => (part, ""),
    };
    let number = parse_net_name(name.trim())?;
    let (list, rest) = match rest.strip_prefix('(') {
        None => (None, rest),
        Some(rest) => {
            let (list, rest) = rest
                .split_once(')')
                .ok_or_else(|| format!("{part}: '(' without ')'"))?;
            (Some(list), rest)
        }
    };
    let cpts = parse_cpts(part, rest.trim())?;
    let mut interfaces: Vec<IfSpec> = Vec::new();
    if let Some(list) = list {
        for item in split_outside_brackets(list, ',')? {
            let (name, cpts) = match item.find('[') {
                Some(index) => item.split_at(index),
                None => (item, ""),
            };
            let name = name.trim();
            let printable = name.bytes().all(|b| b.is_ascii_graphic());
            if name.is_empty() || name.len() > INTERFACE_NAME_MAX || !printable {
                return Err(format!("{part}: '{name}' is not the name of an interface"));
            }
            if interfaces.iter().any(|i| i.name == name) {
                return Err(format!("{part}: interface {name} is named twice"));
            }
            interfaces.push(IfSpec {
                name: name.to_owned(),
                cpts: parse_cpts(part, cpts.trim())?,
            });
        }
    }
    Ok(NetSpec {
        number,
        interfaces,
        cpts,
    })
}

/// Parses `[0,1]`, `[0-3/2]`, or nothing.
fn parse_cpts(part: &str, text: &str) -> Result<Option<Vec<usize>>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let list = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let list = list.ok_or_else(|| format!("{part}: expected partitions such as [0,1], found '{text}'"))?;
    parse_cpt_list(list)
        .map(Some)
        .map_err(|why| format!("{part}: {why}"))
}

/// Parses a non-empty list of partitions: `0,1`, `0-3` or `0-3/2`.
///
/// # Errors
///
/// The list is malformed or empty.
pub fn parse_cpt_list(list: &str) -> Result<Vec<usize>, String> {
    match cpt::parse_list(list)? {
        cpts if cpts.is_empty() => Err("[] names no partition".to_owned()),
        cpts => Ok(cpts),
    }
}

/// Splits at each `separator` outside of brackets and parentheses; the parts are trimmed.
fn split_outside_brackets(text: &str, separator: char) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0_i32, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            c if c == separator && depth == 0 => {
                parts.push(text[begin..i].trim());
                begin = i + c.len_utf8();
            }
            _ => {}
        }
        if depth < 0 {
            return Err(format!("'{c}' without an opening bracket"));
        }
    }
    if depth != 0 {
        return Err("a bracket is not closed".to_owned());
    }
    parts.push(text[begin..].trim());
    Ok(parts)
}

/// Formats `networks=`.
pub(crate) fn networks_text(nets: &[NetSpec]) -> String {
    let cpts = |cpts: &Option<Vec<usize>>| match cpts {
        None => String::new(),
        Some(cpts) => {
            let list: Vec<String> = cpts.iter().map(usize::to_string).collect();
            format!("[{}]", list.join(","))
        }
    };
    let net = |net: &NetSpec| {
        let list: Vec<String> = net
            .interfaces
            .iter()
            .map(|i| i.name.clone() + &cpts(&i.cpts))
            .collect();
        let list = match list.is_empty() {
            true => String::new(),
            false => format!("({})", list.join(",")),
        };
        net_name(net.number) + &list + &cpts(&net.cpts)
    };
    nets.iter().map(net).collect::<Vec<_>>().join(",")
}

/// Formats `routes=`.
pub(crate) fn routes_text(routes: &[RouteSpec]) -> String {
    let route = |r: &RouteSpec| {
        let hop = r.hop.map(|h| format!(" {h}")).unwrap_or_default();
        let priority = if r.priority == 0 {
            String::new()
        } else {
            format!(":{}", r.priority)
        };
        format!("{}{hop} {}{priority}", net_name(r.net as u16), r.gateway)
    };
    routes.iter().map(route).collect::<Vec<_>>().join("; ")
}

/// Parses `routes=`.
///
/// # Errors
///
/// The text is malformed; the error explains the mistake.
pub fn parse_routes(text: &str) -> Result<Vec<RouteSpec>, LnetError> {
    let config_error = |why: String| LnetError::Config {
        what: "routes",
        text: text.to_owned(),
        why,
    };
    let mut routes = Vec::new();
    for line in text.split([';', '\n']).map(str::trim).filter(|l| !l.is_empty()) {
        let mut words = line.split_whitespace().peekable();
        let nets = expand(words.next().unwrap_or_default()).map_err(config_error)?;
        let hop = match words.peek().filter(|w| w.bytes().all(|b| b.is_ascii_digit())) {
            None => None,
            Some(word) => Some(parse_hops(word).map_err(config_error)?),
        };
        if hop.is_some() {
            words.next();
        }
        if words.peek().is_none() {
            return Err(config_error(format!(
                "'{line}' names no router: expected a NID such as 192.168.0.1@tcp after the network"
            )));
        }
        let mut gateways = Vec::new();
        for word in words {
            for one in expand(word).map_err(config_error)? {
                gateways.push(parse_gateway(&one).map_err(config_error)?);
            }
        }
        for net in &nets {
            let net = Nid::tcp(
                std::net::Ipv4Addr::UNSPECIFIED,
                parse_net_name(net).map_err(config_error)?,
            )
            .net();
            for &(gateway, priority) in &gateways {
                check_gateway(net, gateway).map_err(config_error)?;
                if routes.len() >= ROUTES_MAX {
                    return Err(config_error(format!("more than {ROUTES_MAX} routes")));
                }
                routes.push(RouteSpec {
                    net,
                    gateway,
                    hop,
                    priority,
                });
            }
        }
    }
    Ok(routes)
}

/// Parses a number of hops from 1 to 255.
///
/// # Errors
///
/// The text is not a number in this range.
pub fn parse_hops(text: &str) -> Result<u32, String> {
    let hops = text.parse().ok().filter(|h| (1..=HOPS_MAX).contains(h));
    hops.ok_or_else(|| format!("'{text}' is not a number of hops from 1 to {HOPS_MAX}"))
}

/// Checks that a router is a TCP NID with an address, and not on the network that it leads to.
///
/// # Errors
///
/// The router fails one of these checks.
pub fn check_gateway(net: u32, gateway: Nid) -> Result<(), String> {
    if gateway.net() == net {
        return Err(format!("{gateway} is on the destination network itself"));
    }
    if !gateway.is_tcp() || gateway.addr().is_unspecified() {
        return Err(format!("{gateway} is not the NID of a router"));
    }
    Ok(())
}

/// Parses `NID[:PRIORITY]`.
fn parse_gateway(text: &str) -> Result<(Nid, u32), String> {
    let (nid, priority) = match text.split_once(':') {
        None => (text, 0),
        Some((nid, priority)) => {
            let number = priority
                .parse()
                .map_err(|_| format!("{text}: '{priority}' is not a priority (a number from 0)"))?;
            (nid, number)
        }
    };
    if !nid.contains('@') {
        return Err(format!(
            "'{nid}' is not the NID of a router, such as 192.168.0.1@tcp"
        ));
    }
    Ok((nid.parse().map_err(|e| format!("{e}"))?, priority))
}

/// Expands a word with lists such as `[1-3,7]` to one word for each combination of their numbers.
fn expand(word: &str) -> Result<Vec<String>, String> {
    let mut out = vec![String::new()];
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('[') {
        let (list, after) = after
            .split_once(']')
            .ok_or_else(|| format!("{word}: '[' without ']'"))?;
        let numbers = cpt::parse_list(list).map_err(|why| format!("{word}: {why}"))?;
        if numbers.is_empty() || out.len() * numbers.len() > ROUTES_MAX {
            return Err(format!(
                "{word} expands to nothing, or to more than {ROUTES_MAX} words"
            ));
        }
        out = out
            .iter()
            .flat_map(|o| numbers.iter().map(move |n| format!("{o}{before}{n}")))
            .collect();
        rest = after;
    }
    out.iter_mut().for_each(|o| o.push_str(rest));
    Ok(out)
}

#[cfg(test)]
#[path = "net_syntax_tests.rs"]
mod tests;
