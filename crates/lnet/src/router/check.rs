//! Pings routers periodically to find whether they are up, forward messages, and have an interface
//! on the destination network.

use super::{Gateway, Route};
use crate::{Lnet, LnetConfig, PingInfo, net_name};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use wire::{LNET_NI_STATUS_UP, LNET_PING_FEAT_RTE_DISABLED};

/// Used instead of an interval of zero, which disables pings: a year.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Monitors one router as long as there are routes through it.
pub(crate) async fn monitor(lnet: Weak<Lnet>, gateway: Arc<Gateway>) {
    loop {
        let Some(routes) = lnet.upgrade().map(|lnet| lnet.routes_via_gateway(&gateway)) else {
            return;
        };
        if routes.is_empty() {
            return;
        }
        let Some((alive_interval, dead_interval)) = check(&lnet, &gateway, &routes).await else {
            return;
        };
        let checked_at = Instant::now();
        loop {
            let interval = if gateway.is_alive() {
                alive_interval
            } else {
                dead_interval
            };
            tokio::select! {
                biased;
                () = sleep_until(checked_at + interval) => break,
                () = gateway.wake.notified() => {
                    if gateway.sign_of_life.swap(false, Ordering::Relaxed) {
                        break;
                    }
                }
            }
        }
    }
}

/// Checks a router once. Returns the times until the next check for a router that is up and for one
/// that is down; `None` if the node was dropped.
async fn check(
    lnet: &Weak<Lnet>,
    gateway: &Arc<Gateway>,
    routes: &[Arc<Route>],
) -> Option<(Duration, Duration)> {
    let lnet = lnet.upgrade()?;
    let cfg = lnet.config().clone();
    let or_never = |interval: Duration| if interval.is_zero() { NEVER } else { interval };
    let intervals = (
        or_never(cfg.alive_router_check_interval),
        or_never(cfg.dead_router_check_interval),
    );
    if cfg.alive_router_check_interval.is_zero() {
        // Without pings, routers count as up.
        gateway.mark_up();
        return Some(intervals);
    }
    match lnet.ping(gateway.nid, cfg.router_ping_timeout).await {
        Err(e) => gateway.mark_down(&e),
        Ok(info) if info.features & LNET_PING_FEAT_RTE_DISABLED != 0 => {
            gateway.mark_down(&"forwarding is disabled there")
        }
        Ok(info) => {
            for route in routes {
                let reaches_net = reaches_net(route, &info, &cfg);
                if route.reaches_net.swap(reaches_net, Ordering::Relaxed) && !reaches_net {
                    let net = net_name(route.spec.net as u16);
                    tracing::warn!(router = %gateway.nid, net, "route disabled: none of the router's interfaces on this network is up");
                }
            }
            gateway.mark_up();
        }
    }
    Some(intervals)
}

/// Whether `info`, the ping reply of the route's router, allows the route. A router without an
/// interface on the network may reach it through another router, unless the route has one hop.
fn reaches_net(route: &Route, info: &PingInfo, cfg: &LnetConfig) -> bool {
    let mut on_net = info
        .nis
        .iter()
        .filter(|ni| ni.ns_nid.net() == route.spec.net)
        .peekable();
    if !cfg.avoid_asym_router_failure {
        return true;
    }
    match on_net.peek() {
        None => route.spec.hop != Some(1),
        Some(_) => on_net.any(|ni| ni.ns_status == LNET_NI_STATUS_UP),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::reaches_net;
    use crate::router::{Gateway, Route};
    use crate::{LnetConfig, PingInfo, RouteSpec};
    use std::sync::Arc;
    use wire::Nid;

    #[test]
    fn the_routers_ping_reply_decides_whether_a_route_is_usable() {
        let gateway: Nid = "10.0.0.1@tcp".parse().unwrap();
        let far: Nid = "10.1.0.1@tcp1".parse().unwrap();
        let route = |hop| {
            let spec = RouteSpec {
                net: far.net(),
                gateway,
                hop,
                priority: 0,
            };
            Route::new(spec, Arc::new(Gateway::new(gateway, true)))
        };
        let cfg = LnetConfig::default();
        let mut info = PingInfo::up(12345, 1, &[gateway, far], true);
        assert!(reaches_net(&route(Some(1)), &info, &cfg));
        info.nis[2].ns_status = 0xdead_face;
        assert!(!reaches_net(&route(None), &info, &cfg));
        assert!(reaches_net(
            &route(None),
            &info,
            &LnetConfig {
                avoid_asym_router_failure: false,
                ..cfg.clone()
            }
        ));
        let elsewhere = PingInfo::up(12345, 1, &[gateway], true);
        assert!(
            reaches_net(&route(None), &elsewhere, &cfg),
            "the router may use another router"
        );
        assert!(!reaches_net(&route(Some(1)), &elsewhere, &cfg));
    }
}
