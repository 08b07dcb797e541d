module delayd

go 1.24
