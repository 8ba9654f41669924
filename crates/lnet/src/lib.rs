//! LNet: NIDs, peers, portals, credits, and the drivers lo and tcp.
