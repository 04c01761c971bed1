//! `weft reshape`, `weft grow`.

use serde_json::json;
use weft_array::reshape::ReshapePlan;
use weft_array::superblock::Shape;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{self, outln};
use weft_cli::size;

use crate::block::attachment::Attachment;
use crate::cli::ReshapeArgs;
use crate::control::client::Client;
use crate::control::protocol::Request;
use crate::report;
use crate::runtime_dir::RuntimeDir;

fn shape(shape: &Shape) -> String {
    format!("{} of {} disks, unit {}", shape.code, shape.slots, size::show(shape.unit_bytes))
}

fn show(array: &str, plan: &ReshapePlan) {
    outln!("{array}: {} becomes {}", shape(&plan.from), shape(&plan.to));
    let (before, after) = (size::show(plan.size_bytes), size::show(plan.new_size_bytes));
    outln!("  {before} become {after}; what was written is moved");
}

/// What those who use the array must do to get at its new size.
fn show_users(client: &mut Client, array: &str, dir: &RuntimeDir) -> Outcome {
    let served = client.status_of(array)?;
    if let Some(clients) = report::status::outdated_clients(served.nbd_outdated) {
        outln!("  {clients}");
    }
    let attachment = Attachment::of(dir, &served.status.name).filter(|_| served.attached);
    if let Some(device) = attachment.and_then(|attachment| attachment.device()) {
        let device = device.display();
        outln!("  {device} gets the new size; enlarge its file system: `resize2fs {device}`, …");
    }
    Ok(())
}

/// `weft reshape`.
pub fn reshape(args: &ReshapeArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let request = Request::Reshape {
        array: args.array.clone(),
        code: args.code.clone(),
        unit_bytes: args.unit,
        add: args.add,
        dry_run: args.dry_run,
    };
    let plan: ReshapePlan = client.ask(request)?;
    let answer = || json!({ "plan": plan, "done": !args.dry_run });
    if args.dry_run {
        if json {
            return output::answer(&answer());
        }
        show(&args.array, &plan);
        outln!("nothing was changed");
        return Ok(());
    }
    if !json {
        show(&args.array, &plan);
    }
    if !args.no_wait {
        let end = report::follow::reshape(&mut client, &args.array, json)?;
        if end.size_bytes < plan.new_size_bytes {
            return Err(Failure::new(format!("{} has not been moved completely", args.array))
                .hint("it goes on once that is possible: `weft status` shows what it waits for"));
        }
    }
    if json {
        return output::answer(&answer());
    }
    if args.no_wait {
        outln!("it goes on in the background: `weft status {}` shows how far it is", args.array);
    } else {
        outln!("done");
        show_users(&mut client, &args.array, dir)?;
    }
    Ok(())
}
