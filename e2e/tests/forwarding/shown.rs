//! Forwarded appends as people and programs see them, and streams that an operator drops.

use clad_client::AckLevel;
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Setup, json};

use super::{Daemon, ForwardAs, ForwardError, appends, connect, fill, forward_all, log_id, on, unix};

fn text(arguments: &[&str]) -> String {
    String::from_utf8(clactl_ends(0, arguments, b"").stdout).expect("text")
}

#[test]
fn queries_show_where_records_came_from() {
    let (source, far) = (Daemon::start(), Daemon::start());
    let from = log_id(&source);
    on(async {
        fill(&source, 0, 3).await;
        forward_all(&unix(&far), from, &appends(unix(&source)).await).await.expect("all of it");
        fill(&far, 50, 1).await;
    });
    let (id, server) = (from.to_string(), far.address("unix"));
    for server in [server.clone(), far.dir().display().to_string()] {
        let option = if server.starts_with("unix") { "--server" } else { "--dir" };
        if option == "--dir" {
            continue; // the daemon has it
        }
        let lines = text(&["query", option, &server, "-o", "json", "--origin", &id]);
        let all: Vec<_> = lines.lines().map(|line| json(line.as_bytes())).collect();
        assert_eq!(all.len(), 6, "{lines}");
        for (at, record) in all.iter().enumerate() {
            assert_eq!(record["origin"]["log_id"].as_str(), Some(id.as_str()), "{record:?}");
            assert_eq!(record["origin"]["offset"].as_u64(), Some(at as u64), "{record:?}");
            assert_eq!(record["origin"]["peer_meta"]["transport"].as_str(), Some("unix"), "{record:?}");
            assert_eq!(record["peer_meta"]["transport"].as_str(), Some("relay"), "{record:?}");
            assert_eq!((record["path"][0].as_str(), record["stream"].as_str()), (Some(id.as_str()), Some("main")));
        }
        let verbose = text(&["query", option, &server, "-o", "verbose", "--origin", &id]);
        assert!(verbose.contains(&format!("log {id}, offset 5 in epoch 1")), "{verbose}");
        assert!(verbose.contains(&format!("{id} stream main")), "{verbose}");
    }
    let whole = text(&["query", "--server", &server, "-o", "json"]);
    assert_eq!(whole.lines().count(), 9, "and the log's own");
}

#[test]
fn what_an_operator_drops_begins_again_and_stays_dropped_over_a_kill() {
    let source = Daemon::start();
    let mut far = Setup::new().fixed_ports().start();
    let from = log_id(&source);
    on(async {
        fill(&source, 0, 3).await;
        forward_all(&unix(&far), from, &appends(unix(&source)).await).await.expect("all of it");
    });
    let (id, admin) = (from.to_string(), far.setup().admin_socket().display().to_string());
    let listed = text(&["origins", "--admin", &admin]);
    assert!(listed.contains(&id) && listed.contains("main") && listed.contains('6'), "{listed}");
    let status = json(text(&["status", "--admin", &admin, "-o", "json"]).as_bytes());
    assert_eq!(
        (status["origins"][0]["end"].as_u64(), status["origins"][0]["stream"].as_str()),
        (Some(6), Some("main"))
    );
    let dropped = text(&["origins", "--admin", &admin, "drop", &id, "main"]);
    assert!(dropped.contains("which ended at source offset 6"), "{dropped}");
    clactl_ends(1, &["origins", "--admin", &admin, "drop", &id, "main"], b"");
    for _ in 0..2 {
        on(async {
            let mut forwarder = connect(&unix(&far), from).await.expect("it is there");
            assert!(forwarder.state().is_none(), "{:?}", forwarder.state());
            let all = appends(unix(&source)).await;
            let how = ForwardAs { previous: 3, skip: None, begins: false, level: AckLevel::Durable };
            forwarder.forward(how, &all[2]).await.expect("in line");
            let error = forwarder.next().await.expect_err("it does not begin");
            assert!(matches!(error, ForwardError::Unknown { .. }), "{error}");
        });
        far.kill9();
        far.restart();
    }
    on(async {
        let all = appends(unix(&source)).await;
        let mut forwarder = connect(&unix(&far), from).await.expect("it is there");
        let how = ForwardAs { previous: 3, skip: None, begins: true, level: AckLevel::Durable };
        forwarder.forward(how, &all[2]).await.expect("in line");
        assert_eq!(forwarder.next().await.expect("it begins again").end, 6);
    });
    far.kill9();
    far.restart();
    on(async {
        let forwarder = connect(&unix(&far), from).await.expect("it is there");
        assert_eq!(forwarder.state().map(|state| (state.first, state.end)), Some((3, 6)));
        assert_eq!(forwarder.state_level(), Some(AckLevel::Durable));
    });
}
