//! Start of the listeners of syslog.

use std::collections::HashMap;

use tokio::net::UnixListener;

use super::advice;
use super::bind::{Sockets, bind_tcp, bind_unix_of, failed};
use super::inherited_sockets::InheritedSockets;
use crate::config::{self, Config, SyslogAddress};
use crate::exit::Exit;
use crate::ingest::syslog::{Datagrams, Listener, ListenerSettings, Rules, Syslog, own_names};
use crate::tls::Tls;
use clad_proto::AckLevel;

/// Binds each listener and serves it. `highest` is the highest level that the log offers, and `tls` is there where a listener speaks it.
pub(super) async fn serve(
    config: &Config,
    syslog: &Syslog,
    (highest, tls): (AckLevel, Option<&Tls>),
    inherited: &mut InheritedSockets,
    sockets: &mut Sockets,
    listen_addresses: &mut HashMap<String, String>,
) -> Result<(), Exit> {
    for (name, config) in &config.ingest.syslog {
        let Some(address) = &config.listen else { continue };
        let key = format!("ingest.syslog.{name}.listen");
        let level = config.ack.level().unwrap_or(highest);
        if level > highest && matches!(address, SyslogAddress::Relp(_) | SyslogAddress::Relps(_)) {
            let text = format!("ingest.syslog.{name}.ack = {level}, and this log reaches {highest} at most");
            return Err(failed("serve RELP", &text));
        }
        let settings = ListenerSettings {
            rules: Rules {
                format: config.format,
                zone: config::zone(&config.time_zone).unwrap_or(jiff::tz::TimeZone::UTC),
                local_names: address.path().map(|_| own_names()),
            },
            max_message: config.max_message as usize,
            level,
        };
        let no_socket = |e: &std::io::Error| {
            let advice = match address.path() {
                Some(path) => advice::on_socket(&key, path, e),
                None => advice::on_address(&key, e),
            };
            failed(&format!("listen on {address} ({key})"), &format!("{e}{advice}"))
        };
        let shown = match address {
            SyslogAddress::Udp(address) => {
                let datagrams = Datagrams::udp(*address, inherited.udp(*address)).map_err(|e| no_socket(&e))?;
                let shown = datagrams.name().to_owned();
                syslog.read(datagrams, settings);
                shown
            }
            SyslogAddress::UnixDatagram(path) => {
                let held = inherited.unix_datagram(path);
                let is_ours = held.is_none();
                let datagrams = Datagrams::unix(path, held).map_err(|e| no_socket(&e))?;
                if is_ours {
                    sockets.add(path);
                }
                syslog.read(datagrams, settings);
                address.to_string()
            }
            SyslogAddress::UnixStream(path) => {
                let listener: UnixListener = bind_unix_of(&key, path, 0o666, inherited, sockets)?;
                syslog.serve(Listener::Unix(listener), settings);
                address.to_string()
            }
            SyslogAddress::Tcp(wanted)
            | SyslogAddress::Tls(wanted)
            | SyslogAddress::Relp(wanted)
            | SyslogAddress::Relps(wanted) => {
                let bound = bind_tcp(&key, Some(*wanted), inherited).await?;
                let Some((listener, bound)) = bound else { continue };
                let tls = if address.speaks_tls() { tls.cloned() } else { None };
                let is_relp = matches!(address, SyslogAddress::Relp(_) | SyslogAddress::Relps(_));
                syslog.serve(
                    if is_relp { Listener::Relp(listener, tls) } else { Listener::Tcp(listener, tls) },
                    settings,
                );
                let shown = address.to_string();
                format!("{}://{bound}", shown.split_once("://").map_or("", |(protocol, _)| protocol))
            }
        };
        listen_addresses.insert(format!("syslog.{name}"), shown);
    }
    Ok(())
}
