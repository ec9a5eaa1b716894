"""Verbs of RabbitMQ's command line tools, and the commands here that do the same: for fingers that know the former.

A verb that has nothing like it here names what takes its place.
"""

from __future__ import annotations

from typing import Final

COMMANDS: Final[dict[str, str]] = {
    # rabbitmqctl: content
    "list_queues": "queues list",
    "list_exchanges": "exchanges list",
    "list_bindings": "bindings list",
    "list_connections": "connections list",
    "list_channels": "channels list",
    "list_consumers": "consumers list",
    "delete_queue": "queues delete NAME",
    "purge_queue": "queues purge NAME",
    "close_connection": "connections close NAME",
    "close_all_connections": "connections close --of USER",
    # users, permissions, policies
    "list_users": "users list",
    "add_user": "users add NAME",
    "delete_user": "users delete NAME",
    "change_password": "users password NAME",
    "clear_password": "users password NAME",
    "authenticate_user": "whoami --user NAME",
    "set_user_tags": "users tags NAME TAG...",
    "list_user_permissions": "permissions list --filter user=NAME",
    "list_permissions": "permissions list",
    "set_permissions": "permissions set USER",
    "clear_permissions": "permissions clear USER",
    "list_topic_permissions": "topic-permissions list",
    "set_topic_permissions": "topic-permissions set USER",
    "clear_topic_permissions": "topic-permissions clear USER",
    "set_user_limits": "user-limits set USER",
    "list_user_limits": "user-limits list",
    "list_vhosts": "vhosts list",
    "add_vhost": "vhosts add NAME",
    "delete_vhost": "vhosts delete NAME",
    "trace_on": "vhosts trace-on NAME",
    "trace_off": "vhosts trace-off NAME",
    "set_vhost_limits": "vhost-limits set VHOST",
    "list_vhost_limits": "vhost-limits list",
    "list_policies": "policies list",
    "set_policy": "policies set NAME",
    "clear_policy": "policies delete NAME",
    "list_operator_policies": "operator-policies list",
    "set_operator_policy": "operator-policies set NAME",
    "clear_operator_policy": "operator-policies delete NAME",
    "list_parameters": "parameters list",
    "set_parameter": "parameters set COMPONENT NAME",
    "clear_parameter": "parameters delete COMPONENT NAME",
    "list_global_parameters": "global-parameters list",
    "set_global_parameter": "global-parameters set NAME",
    "clear_global_parameter": "global-parameters delete NAME",
    "export_definitions": "definitions export FILE",
    "import_definitions": "definitions import FILE",
    # nodes and cluster
    "cluster_status": "members",
    "set_cluster_name": "cluster name NAME",
    "join_cluster": "join",
    "forget_cluster_node": "forget-node NAME",
    "list_feature_flags": "cluster features",
    "enable_feature_flag": "cluster raise-level",
    "await_startup": "health --wait SECONDS",
    "ping": "health",
    "environment": "settings",
    "report": "overview",
    "force_boot": "rescue",
    # rabbitmq-diagnostics, rabbitmq-queues, rabbitmq-upgrade
    "check_running": "health",
    "check_local_alarms": "checks run",
    "check_port_connectivity": "checks run",
    "check_if_node_is_quorum_critical": "checks run",
    "quorum_status": "explain queue NAME",
    "rebalance": "queues rebalance",
    "transfer_leadership": "queues move NAME",
    "drain": "drain",
    "revive": "drain --undo",
}
"""verb -> command, without the name of the program."""
INSTEAD: Final[dict[str, str]] = {
    "stop": "send the node SIGTERM (systemctl stop clusterbroker)",
    "stop_app": "send the node SIGTERM (systemctl stop clusterbroker)",
    "start_app": "start the node: clusterbroker start",
    "shutdown": "send the node SIGTERM (systemctl stop clusterbroker)",
    "reset": "stop the node and remove its data directory",
    "force_reset": "stop the node and remove its data directory",
    "rotate_logs": "logs go to standard error: the service manager keeps and rotates them",
    "sync_queue": "replicas synchronise by themselves: clusterbroker copying show",
    "enable": "there are no plug-ins: what is there is always on",
    "list_hashes": "passwords are hashed by scrypt; RabbitMQ's SHA-256 and SHA-512 are understood",
}
"""verb -> what to do."""


def hint(verb: str) -> str | None:
    """What to do in its place; None: no verb of RabbitMQ's."""
    verb = verb.replace("-", "_")
    if verb in COMMANDS:
        return f"clusterbroker {COMMANDS[verb]}"
    return INSTEAD.get(verb)
